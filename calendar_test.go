package reservoir_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// Windows by the calendar end at its midnights, for all processes, whatever came before;
// probes, refusals and outages know the real length.
func TestCalendarWindows(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	for what, c := range map[string]struct {
		limit reservoir.Limit
		begin time.Time
		ends  []time.Time
	}{
		"day":   {reservoir.PerDay(50, zone), at(zone, 3, 24, 13), []time.Time{at(zone, 3, 25, 0), at(zone, 3, 26, 0), at(zone, 3, 27, 0), at(zone, 3, 28, 0)}},
		"week":  {reservoir.PerWeek(50, nil), at(time.UTC, 2, 23, 1), []time.Time{at(time.UTC, 2, 28, 0), at(time.UTC, 3, 6, 0), at(time.UTC, 3, 13, 0)}},
		"month": {reservoir.PerMonth(50, zone), at(zone, 1, 30, 7), []time.Time{at(zone, 2, 1, 0), at(zone, 3, 1, 0), at(zone, 4, 1, 0), at(zone, 5, 1, 0)}},
	} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			time.Sleep(time.Until(c.begin))
			net := testnet.Far(time.Millisecond)
			all := fleet(t, 3, net, c.limit, opt)
			for i, end := range c.ends {
				for k := range 30 {
					r := allow(t, all[(i+k)%3], "k", 3)
					require.True(t, end.Equal(r.Reset), "%v, want %v", r.Reset, end)
				}
				r := allow(t, all[i%3], "other "+what, 1)
				require.True(t, end.Equal(r.Reset))
				require.LessOrEqual(t, used(t, net, "k"), int64(50))
				require.GreaterOrEqual(t, used(t, net, "k"), int64(48))
				if r = allow(t, all[0], "k", 50); !r.Allowed {
					require.Equal(t, time.Until(end).Round(time.Minute), r.RetryAfter.Round(time.Minute))
				}
				time.Sleep(time.Until(end.Add(time.Duration(i) * time.Second)))
			}
			for _, l := range all {
				balance(t, l)
			}
		})
	}
}

// A call that is on its way over midnight opens the window that is due there, of whatever
// length, and so does one by a clock that is behind the store's or ahead of it.
func TestCalendarAtMidnight(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		for month := time.February; month < 12; month++ {
			midnight, next := at(time.UTC, month, 1, 0), at(time.UTC, month+1, 1, 0)
			net := testnet.Far(40 * time.Millisecond)
			l := open(t, net, reservoir.PerMonth(50, nil), opt)
			time.Sleep(time.Until(midnight.Add(-time.Hour)))
			require.True(t, midnight.Equal(allow(t, l, "old", 10).Reset))
			time.Sleep(time.Until(midnight.Add(-20 * time.Millisecond)))
			for _, key := range []string{"old", "new"} {
				go func() {
					r, err := l.AllowN(bg, key, 30)
					assert.NoError(t, err)
					assert.True(t, midnight.Equal(r.Reset) || next.Equal(r.Reset), "%s: %v", key, r.Reset)
				}()
			}
			time.Sleep(time.Second)
			for _, key := range []string{"old", "new"} {
				r := allow(t, l, key, 1)
				require.True(t, next.Equal(r.Reset), "%s %s: %v", month, key, r.Reset)
			}
			require.NoError(t, l.Close(bg))
		}
	})
}

func at(zone *time.Location, month time.Month, day, hour int) time.Time {
	return time.Date(2000, month, day, hour, 0, 0, 0, zone)
}

// smallBatches are the policies that differ under the small limits of these tests: of larger
// batches the store grants what it has.
func smallBatches() map[string]reservoir.Option {
	few := everyPolicy()
	delete(few, "fixed=64")
	delete(few, "ladder")
	return few
}

// A refused user asks again now and then and is admitted at the reset. The window that
// opens then is the calendar's. All clocks agree.
func TestCalendarWindowAfterAShorterOne(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	for what, c := range map[string]struct {
		limit reservoir.Limit
		begin time.Time
		end   time.Time // of the window after the one that begin is in
	}{
		"day after the one of 23 hours":       {reservoir.PerDay(20, berlin), at(berlin, 3, 26, 1), at(berlin, 3, 28, 0)},
		"week after the one of 167 hours":     {reservoir.PerWeek(20, berlin), at(berlin, 3, 21, 1), at(berlin, 4, 3, 0)},
		"March":                               {reservoir.PerMonth(20, nil), at(time.UTC, 2, 2, 1), at(time.UTC, 4, 1, 0)},
		"May":                                 {reservoir.PerMonth(20, nil), at(time.UTC, 4, 2, 1), at(time.UTC, 6, 1, 0)},
		"March, used on the 1st of February":  {reservoir.PerMonth(20, berlin), at(berlin, 2, 1, 0), at(berlin, 4, 1, 0)},
		"April, after a month of DST's begin": {reservoir.PerMonth(20, berlin), at(berlin, 3, 2, 1), at(berlin, 5, 1, 0)},
	} {
		for _, late := range []time.Duration{0, time.Millisecond, time.Second, 30 * time.Second} {
			inBubbles(t, what+" "+late.String(), smallBatches(), func(t *testing.T, name string, opt reservoir.Option) {
				time.Sleep(time.Until(c.begin))
				net := testnet.Far(time.Millisecond)
				all := fleet(t, 2, net, c.limit, opt)
				exhaust(t, all, "k")
				r := allow(t, all[0], "k", 1)
				require.False(t, r.Allowed)
				for step := time.Until(r.Reset) / 64; time.Until(r.Reset) > step; time.Sleep(step) {
					require.False(t, allow(t, all[0], "k", 1).Allowed)
				}
				time.Sleep(time.Until(r.Reset) + late)
				period, _ := c.limit.Calendar.Around(time.Now())
				var admitted int64
				for step := time.Until(c.end) / 64; time.Until(c.end) > 2*time.Hour; time.Sleep(step) {
					for _, l := range all {
						r := allow(t, l, "k", 1)
						if r.Allowed {
							admitted++
						}
						if admitted == 1 && r.Allowed {
							assert.True(t, c.end.Equal(r.Reset), "the window ends at %v, want %v", r.Reset, c.end)
						}
					}
				}
				assert.LessOrEqual(t, admitted, int64(20), "since %v", period)
			})
		}
	}
}

// The same, as short as can be: a batch of the 1st of February lasts until March.
func TestMarchEndsWithMarch(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		time.Sleep(time.Until(at(time.UTC, 2, 1, 1)))
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMonth(10_000, nil), reservoir.WithBatch(reservoir.Fixed(5000)))
		for time.Now().Before(at(time.UTC, 3, 1, 0)) {
			require.True(t, allow(t, l, "k", 1).Allowed)
			time.Sleep(30 * time.Minute)
		}
		admitted := drain(t, l, "k", 1)
		r := allow(t, l, "k", 1)
		assert.True(t, at(time.UTC, 4, 1, 0).Equal(r.Reset), "the window ends at %v", r.Reset)
		time.Sleep(r.RetryAfter + time.Second)
		if time.Now().Month() == time.March {
			admitted += drain(t, l, "k", 1)
		}
		assert.EqualValues(t, 10_000, admitted, "in March")
	})
}

// skewed is s with a clock that is ahead of the processes' by so much.
func skewed(s backend.Store, ahead time.Duration) *testnet.Network {
	net := testnet.New(s, 0)
	net.Skew(ahead)
	return net
}

// Windows by the calendar with processes whose clocks differ from the store's and from each
// other's, over days on which clocks are set and months of all lengths: by the store's clock
// each window is a whole period, no period admits more than the limit, and nobody is refused
// in a period of which nothing was used.
func TestCalendarOfSkewedClocks(t *testing.T) {
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Santiago", "Africa/Cairo"} {
		zone, err := time.LoadLocation(name)
		require.NoError(t, err)
		for what, make := range map[string]func(int64, *time.Location) reservoir.Limit{"day": reservoir.PerDay, "week": reservoir.PerWeek, "month": reservoir.PerMonth} {
			for _, ahead := range []time.Duration{-90 * time.Second, 90 * time.Second, -30 * time.Minute, 30 * time.Minute} {
				inBubbles(t, fmt.Sprint(name, what, ahead), smallBatches(), func(t *testing.T, _ string, opt reservoir.Option) {
					limit := make(20, zone)
					store := memstore.New()
					all := []*reservoir.Limiter{
						open(t, skewed(store, ahead), limit, opt), open(t, skewed(store, ahead), limit, opt),
					}
					time.Sleep(time.Until(time.Date(2000, 3, 24, 13, 0, 5, 0, time.UTC)))
					step, steps := 15*time.Minute, 4*4*24 // a Sunday on which clocks are set, and the Monday after it
					if what == "month" {
						step, steps = 4*time.Hour, 6*70
					}
					admitted := map[time.Time]int{}
					begins := map[time.Time]bool{}
					var shown int
					for i := range steps {
						at := time.Now().Add(ahead) // by the store's clock
						begin, end := limit.Calendar.Around(at)
						r := allow(t, all[i%2], "k", 1)
						if r.Allowed {
							admitted[begin]++
						} else if !begins[begin] && admitted[begin] == 0 {
							if shown++; shown < 4 {
								t.Logf("refused at %v, though none was admitted since %v; reset %v", at.In(zone), begin, r.Reset.In(zone))
							}
							assert.Less(t, shown, 4)
						}
						if !r.Reset.Equal(end) {
							if shown++; shown < 4 {
								t.Logf("at %v reset is %v, want %v", at.In(zone), r.Reset.In(zone), end)
							}
						}
						time.Sleep(step)
					}
					assert.Zero(t, shown)
					for begin, n := range admitted {
						require.LessOrEqual(t, n, 20, "%v", begin)
					}
				})
			}
		}
	}
}

// A reset leaves a millisecond between its window's end and the month's. Whoever asks in that
// opens the window of the next month, which ends with it and has the limit once.
func TestMonthAfterAReset(t *testing.T) {
	for what, begin := range map[string]time.Time{
		"February": at(time.UTC, 2, 1, 0), "March": at(time.UTC, 3, 1, 0), "May": at(time.UTC, 5, 1, 0), "August": at(time.UTC, 8, 1, 0),
	} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			net := testnet.Far(0)
			all := fleet(t, 2, net, reservoir.PerMonth(100, nil), opt)
			time.Sleep(time.Until(begin.AddDate(0, 0, -3)))
			require.True(t, allow(t, all[0], "k", 100).Allowed)
			require.NoError(t, all[0].Reset(bg, "k"))
			require.True(t, allow(t, all[0], "k", 100).Allowed)
			time.Sleep(time.Until(begin.Add(-500 * time.Microsecond)))
			end := begin.AddDate(0, 1, 0)
			admitted := 0
			for ; time.Now().Before(end.Add(-time.Second)); time.Sleep(7 * time.Hour) {
				for _, l := range all {
					r := allow(t, l, "k", 40)
					assert.True(t, end.Equal(r.Reset), "at %v the window ends at %v", time.Now(), r.Reset)
					if r.Allowed {
						admitted += 40
					}
				}
			}
			assert.Equal(t, 80, admitted, "in one month")
			time.Sleep(time.Until(end.Add(time.Hour)))
			assert.True(t, allow(t, all[1], "k", 100).Allowed, "in the month after it")
		})
	}
}

// A process whose clock is behind the store's first hears of keys around the midnight between
// two periods of different lengths.
func TestNewKeysAtMidnight(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	for what, c := range map[string]struct {
		limit    reservoir.Limit
		midnight time.Time
	}{
		"day":   {reservoir.PerDay(20, berlin), at(berlin, 3, 26, 0)},
		"month": {reservoir.PerMonth(20, nil), at(time.UTC, 3, 1, 0)},
	} {
		for _, room := range []int{0, 1000} {
			inBubbles(t, fmt.Sprint(what, room), everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
				const ahead = 2 * time.Second
				l := open(t, skewed(memstore.New(), ahead), c.limit, opt, reservoir.WithMaxKeys(room))
				time.Sleep(time.Until(c.midnight.Add(-ahead - time.Second)))
				for i := range 50 {
					_, end := c.limit.Calendar.Around(time.Now().Add(ahead)) // by the store's clock
					r := allow(t, l, fmt.Sprint(i), 1)
					require.True(t, r.Allowed)
					require.True(t, end.Equal(r.Reset), "%v, want %v", r.Reset, end)
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
	}
}
