package backend

import (
	"fmt"
	"time"
)

// Calendar ends windows at the midnights of a time zone: each day, week or month. The
// zero Calendar is none.
type Calendar struct {
	Period Period
	Zone   *time.Location // nil is UTC
}

// Period is a unit of the calendar.
type Period uint8

const (
	Day   Period = iota + 1 // from midnight to midnight
	Week                    // from Monday, as in ISO 8601
	Month                   // from the first of a month
)

// Around returns the period that t is in: its begin, which is in it, and its end, which
// is not. A day in which clocks are set has 23 or 25 hours.
func (c Calendar) Around(t time.Time) (begin, end time.Time) {
	zone := c.Zone
	if zone == nil {
		zone = time.UTC
	}
	year, month, day := t.In(zone).Date()
	switch c.Period {
	case Week:
		monday := day - (int(t.In(zone).Weekday())+6)%7
		return start(year, month, monday, zone), start(year, month, monday+7, zone)
	case Month:
		return start(year, month, 1, zone), start(year, month+1, 1, zone)
	}
	return start(year, month, day, zone), start(year, month, day+1, zone)
}

// start is when a day begins. Where clocks are set at midnight that is another hour: package
// time takes one that there is not for the last of the day before.
func start(year int, month time.Month, day int, zone *time.Location) time.Time {
	t := time.Date(year, month, day, 0, 0, 0, 0, zone)
	if t.Day() != time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Day() {
		_, t = t.ZoneBounds()
	}
	return t
}

// At is the limit of the window that t is in: of a calendar's, Window is the length of
// that period.
func (l Limit) At(t time.Time) Limit {
	if l.Calendar.Period != 0 {
		begin, end := l.Calendar.Around(t)
		l.Window = end.Sub(begin)
	}
	return l
}

// Ends is when a window ends that opens at t: one of whole seconds at a whole second.
func (l Limit) Ends(t time.Time) time.Time {
	switch {
	case l.Calendar.Period != 0:
		_, end := l.Calendar.Around(t)
		return end
	case l.Window%time.Second == 0:
		return t.Add(l.Window).Truncate(time.Second)
	}
	return t.Add(l.Window)
}

func (c Calendar) validate() error {
	if c.Period > Month {
		return fmt.Errorf("%w: period %d of a calendar", ErrLimit, c.Period)
	}
	return nil
}
