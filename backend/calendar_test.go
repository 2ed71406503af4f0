package backend

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every instant is in one period, the periods follow each other, and a day is what the clock
// on the wall calls a day: in some zones there is no midnight when clocks are set.
func TestPeriodsOfTheCalendar(t *testing.T) {
	for _, name := range []string{"", "Europe/Berlin", "America/Sao_Paulo", "America/Asuncion", "America/Havana", "America/Santiago", "Africa/Cairo", "Asia/Beirut", "Pacific/Apia", "Australia/Lord_Howe"} {
		zone, err := time.LoadLocation(name)
		require.NoError(t, err)
		for p, days := range map[Period][2]float64{Day: {22, 26}, Week: {6 * 24, 7*24 + 1}, Month: {27 * 24, 31*24 + 1}} {
			c := Calendar{Period: p, Zone: zone}
			at := time.Date(2009, 1, 1, 0, 0, 0, 0, zone)
			odd := 0
			for at.Year() < 2013 {
				begin, end := c.Around(at)
				require.False(t, begin.After(at))
				require.True(t, end.After(at))
				for _, other := range []time.Time{begin, end.Add(-1), begin.Add(end.Sub(begin) / 2)} {
					b, e := c.Around(other)
					require.True(t, b.Equal(begin) && e.Equal(end), "%s %v: %v and %v", name, at, begin, b)
				}
				if h := end.Sub(begin).Hours(); h < days[0] || h > days[1] {
					odd++
				}
				require.NotEqual(t, end.Add(-1).Day(), end.Day(), "%s: %v", name, end)
				if p == Day {
					require.Equal(t, begin.Day(), end.Add(-1).Day(), "%s: %v to %v", name, begin, end)
				}
				at = end
			}
			assert.LessOrEqual(t, odd, 1, "%s: Samoa left out a day", name)
		}
	}
	monday := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	begin, end := Calendar{Period: Week}.Around(monday.Add(-1))
	assert.Equal(t, []time.Time{monday.AddDate(0, 0, -7), monday}, []time.Time{begin, end})
	limit := Limit{Tokens: 7, Window: 24 * time.Hour, Calendar: Calendar{Period: Month}}
	assert.Equal(t, 30*24*time.Hour, limit.At(monday).Window)
	limit.Shadow = true
	assert.Equal(t, Limit{Tokens: 7, Window: 24 * time.Hour, Calendar: limit.Calendar}, limit.Plain(), "requests carry the calendar, because it is in the counter's name")
	assert.NoError(t, limit.Validate())
	limit.Calendar.Period++
	assert.ErrorIs(t, limit.Validate(), ErrLimit)
	assert.Equal(t, monday.Add(time.Minute), Limit{Window: time.Minute}.Ends(monday.Add(999*time.Millisecond)))
	assert.Equal(t, monday.Add(1099*time.Millisecond), Limit{Window: 100 * time.Millisecond}.Ends(monday.Add(999*time.Millisecond)))
}

// TestZones: a counter's name has its zone's name, so that must be one that every process knows, and safe in a key.
func TestZones(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	for _, zone := range []*time.Location{nil, time.UTC, berlin, time.FixedZone("+01", 3600)} {
		limit := Limit{Tokens: 7, Window: 24 * time.Hour, Calendar: Calendar{Period: Day, Zone: zone}}
		assert.NoError(t, limit.Validate(), "%v", zone)
	}
	again, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	assert.Equal(t, "week@Europe/Berlin", Limit{Calendar: Calendar{Period: Week, Zone: again}}.Counter())
	assert.Equal(t, Limit{Calendar: Calendar{Period: Week, Zone: berlin}}.Counter(), Limit{Calendar: Calendar{Period: Week, Zone: again}}.Counter(), "a zone that is loaded anew is the same")
	assert.Equal(t, Limit{Calendar: Calendar{Period: Day}}.Counter(), Limit{Calendar: Calendar{Period: Day, Zone: time.UTC}}.Counter())
	for _, zone := range []*time.Location{time.Local, time.FixedZone("", 0), time.FixedZone("Local", 0), time.FixedZone("a b", 0), time.FixedZone("{a}", 0), time.FixedZone("a\n", 0), time.FixedZone(strings.Repeat("z", 65), 0)} {
		limit := Limit{Tokens: 7, Window: 24 * time.Hour, Calendar: Calendar{Period: Day, Zone: zone}}
		assert.ErrorIs(t, limit.Validate(), ErrLimit, "%v", zone)
	}
	assert.NoError(t, Limit{Tokens: 7, Window: time.Hour, Calendar: Calendar{Zone: time.Local}}.Validate(), "there is no calendar")
}
