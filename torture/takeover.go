package torture

import (
	"time"

	"github.com/stretchr/testify/require"
)

// This file is the faults after which another server takes over.

// failOver promotes a replica that has everything.
func (x *run) failOver(e *event) { x.promote(e, 0) }

// failOverLagging promotes one that has not heard the last of it.
func (x *run) failOverLagging(e *event) { x.promote(e, x.span()) }

// promote holds all traffic for as long as it takes to see what the replica does
// not have. What was under way then is lost, as the primary is.
func (x *run) promote(e *event, lag time.Duration) {
	p, front := x.stage.pair, x.stage.proxies[0]
	if lag > 0 {
		p.links[p.primary].Hold(true)
		time.Sleep(lag)
		await(x.t, syncLimit, "the replica lags", func() bool { return p.unreplicated(keyOf(ledger, "")) > 0 })
	}
	front.Hold(true)
	time.Sleep(20 * time.Millisecond) // what has passed is carried out
	if lag == 0 {
		p.awaitSync()
	}
	for r := range role(roles) {
		e.Lost[r] = p.unreplicated(keyOf(r, ""))
	}
	p.promote()
	front.Cut()
	front.Hold(false)
	e.End = time.Now()
	if p.info(p.primary)["role"] == "master" && (lag == 0 || e.Lost[ledger] > 0) {
		e.Active = 1
	}
	x.recover(e)
	p.rejoin()
	time.Sleep(x.span()) // two failovers in one window would be told apart by nobody
}

// hangMaster stops a cluster's master until its replica has taken over.
func (x *run) hangMaster(e *event) {
	old := x.stage.owner(e.Part)
	node := x.stage.cluster.Nodes[old]
	node.Pause()
	x.takeOver(e, old)
	node.Resume()
	x.stage.healed()
}

// killMaster is the same for one that comes back empty, as a replica.
func (x *run) killMaster(e *event) {
	old := x.stage.owner(e.Part)
	node := x.stage.cluster.Nodes[old]
	node.Kill()
	x.takeOver(e, old)
	plainly(node.Restart)
	x.stage.healed()
}

func (x *run) takeOver(e *event, old int) {
	x.stage.elected(e.Part, old)
	e.End, e.Active = time.Now(), 1
	x.recover(e)
}

// reshard moves slots to another master and back, with those of our keys.
func (x *run) reshard(e *event) {
	masters := x.stage.masters()
	from, to := masters[e.Part], masters[(e.Part+1)%len(masters)]
	slots := x.stage.slotsOf(from, x.sc.Slots)
	require.Len(x.t, slots, x.sc.Slots)
	x.stage.migration(from, to).move(slots)
	e.Active += int64(len(slots))
	x.stage.migration(to, from).move(slots)
	e.Active += int64(len(slots))
}
