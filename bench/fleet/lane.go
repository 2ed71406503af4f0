package fleet

import "time"

// lane is the instants at which something happens to one process: requests come,
// calls reach the store, replies come back. No two processes share any, nor do
// the three in one process, because what happens first at one instant is left to
// chance by the virtual clock, and then the same seed would not give the same
// table.
//
// An instant is moved to the lane's next, by less than lanePeriod.
type lane int // the process' number, less than maxProcesses

type event time.Duration

const (
	request event = iota
	reach
	reply
)

const (
	laneWidth    = 4 // one for each event, rounded up
	maxProcesses = 1000
	lanePeriod   = laneWidth * maxProcesses // divides oneWay
)

// next returns the first instant for e that is not before t.
func (l lane) next(t time.Duration, e event) time.Duration {
	own := time.Duration(l)*laneWidth + time.Duration(e)
	return t + (own-t%lanePeriod+lanePeriod)%lanePeriod
}
