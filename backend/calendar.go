package backend

import (
	"fmt"
	"strings"
	"time"
)

// Calendar ends windows at midnight in a time zone: every day, week or month. The zero
// value means no calendar.
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

// Around returns the period that contains t: its first instant, and the first instant
// after it. A day on which clocks change is shorter or longer than 24 hours.
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

// start returns the first instant of a day. Where clocks skip midnight, [time.Date]
// returns an instant of the day before, and start returns the change of the clocks.
func start(year int, month time.Month, day int, zone *time.Location) time.Time {
	t := time.Date(year, month, day, 0, 0, 0, 0, zone)
	if t.Day() != time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Day() {
		_, t = t.ZoneBounds()
	}
	return t
}

// At returns the limit with the length of the window at t: with a calendar, Window is the
// length of the period that contains t.
func (l Limit) At(t time.Time) Limit {
	if l.Calendar.Period != 0 {
		begin, end := l.Calendar.Around(t)
		l.Window = end.Sub(begin)
	}
	return l
}

// Ends returns the end of a window that opens at t. If its length is in whole seconds, so
// is its end.
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

// name is the period and the zone, as "day@Europe/Berlin".
func (c Calendar) name() string {
	zone := "UTC"
	if c.Zone != nil {
		zone = c.Zone.String()
	}
	return [...]string{"", "day", "week", "month"}[min(c.Period, Month)] + "@" + zone
}

// validate refuses zones without a name of their own, because the name tells them apart in the store: every process
// must mean the same zone by it.
func (c Calendar) validate() error {
	if c.Period > Month {
		return fmt.Errorf("%w: period %d of a calendar", ErrLimit, c.Period)
	}
	if c.Zone == nil || c.Period == 0 {
		return nil
	}
	name := c.Zone.String()
	if c.Zone == time.Local || name == "" || name == "Local" {
		return fmt.Errorf("%w: a calendar in the zone of this machine or one without a name: use time.LoadLocation or time.UTC", ErrLimit)
	}
	if len(name) > 64 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '{' || r == '}' }) {
		return fmt.Errorf("%w: a zone whose name is not that of a time zone", ErrLimit)
	}
	return nil
}
