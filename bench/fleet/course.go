package fleet

import "time"

// course is what happened in each step of time, of all windows and the cold one
// first. A request counts to the step in which it was made, also where its answer
// comes later; a call to the step in which it was sent.
type course struct {
	began time.Time
	step  time.Duration
	steps []step
}

type step struct {
	before   int64 // calls, when the first request of the step was made
	requests int64
	waited   int64 // of them
}

// steps of a window, so that the chart shows its beginning and its end.
const stepsPerWindow = 20

// at returns the step of an instant. Calls is how many there were so far.
func (c *course) at(now time.Time, calls int64) *step {
	i := int(now.Sub(c.began) / c.step)
	for len(c.steps) <= i {
		c.steps = append(c.steps, step{before: calls})
	}
	return &c.steps[i]
}

// moment is what a step was like, as shares of its requests.
type moment struct{ calls, waited float64 }

// moments returns those of all steps. Calls is how many there were in the end.
func (c *course) moments(calls int64) (all []moment) {
	for i, s := range c.steps {
		after := calls
		if i+1 < len(c.steps) {
			after = c.steps[i+1].before
		}
		all = append(all, moment{calls: ratio(after-s.before, s.requests), waited: ratio(s.waited, s.requests)})
	}
	return all
}
