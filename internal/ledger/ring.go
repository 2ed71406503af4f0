package ledger

import (
	"math"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
)

// ring is what a rolling limit has in place of an open window: the tokens charged in each bucket, by the rules of [backend.Rolling].
// What was spent in an interval of a window's length stands in the buckets from 20 before the present one on at the
// interval's last instant, and their sum was at most the limit after every grant.
//
// The clock of a ring never goes back, because what has left the ring would count no more in an interval that comes again.
type ring struct {
	length    time.Duration // of the window
	low       int64         // the first bucket that counts; the present one is 20 later
	counts    []int64       // tokens charged, from low on
	last, off int64         // the latest time, and by how much it is ahead of the store's clock, us
	promised  int64         // tokens that statements in vain were told to wait for, less those that left the ring since
	asked     int64         // the weights of the clients that asked in the present bucket
	before    int64         // those of the bucket before
}

func (r *ring) clone() *ring {
	if r == nil {
		return nil
	}
	next := *r
	next.counts = slices.Clone(r.counts)
	return &next
}

// time is the counter's time at now.
func (c *Counter) time(now int64) int64 {
	if c.ring == nil {
		return now
	}
	return max(now+c.ring.off, c.ring.last)
}

// wind turns the ring of a limit to the present, or makes one, and reports whether another bucket is the present one now.
func (c *Counter) wind(l backend.Limit, now int64) bool {
	made := c.ring == nil
	if made {
		c.ring = &ring{length: l.Window, low: backend.Bucket(now, l.Window) - backend.Buckets, last: now}
	}
	return c.turn(now) || made
}

func (c *Counter) turn(now int64) (turned bool) {
	r := c.ring
	at := c.time(now)
	r.last, r.off = at, at-now
	if low := backend.Bucket(at, r.length) - backend.Buckets; low > r.low {
		if r.before = 0; low == r.low+1 {
			r.before = r.asked
		}
		r.asked = 0
		gone := min(int(low-r.low), len(r.counts))
		for _, n := range r.counts[:gone] {
			c.count, r.promised = c.count-n, max(r.promised-n, 0)
		}
		r.low, r.counts, turned = low, r.counts[gone:], true
	}
	c.trim()
	return turned
}

// trim drops what is empty at the ring's end, which says until when anything counts.
func (c *Counter) trim() {
	r := c.ring
	for n := len(r.counts); n > 0 && r.counts[n-1] == 0; n-- {
		r.counts = r.counts[:n-1]
	}
	if c.end = 0; len(r.counts) > 0 {
		c.end = (backend.BucketEnd(r.low+int64(len(r.counts))-1+backend.Buckets, r.length) + 999) / 1000
	}
}

// add charges n tokens in a bucket, or gives back -n, and returns how many it has. What counts no more cannot change.
func (c *Counter) add(bucket, n int64) int64 {
	r := c.ring
	i := bucket - r.low
	if i < 0 || i > backend.Buckets+backend.Ahead {
		return 0
	}
	for int64(len(r.counts)) <= i {
		r.counts = append(r.counts, 0)
	}
	n = min(max(n, -r.counts[i]), backend.MaxTokens-c.count)
	r.counts[i], c.count = r.counts[i]+n, c.count+n
	return n
}

// roll is Sync of a rolling limit.
func (c *Counter) roll(q backend.Statement, now int64) (backend.Reply, []Message) {
	s := step{Statement: q, Counter: c, now: c.time(now)}
	s.reply.Now = s.now
	if s.void() {
		s.reply.Void = true
		return s.reply, nil
	}
	s.begin(now)
	if q.Client == "" {
		s.chargeBucket()
	} else {
		s.find()
		had := s.count
		s.stateBuckets()
		s.gave = s.count < had
		s.enlist()
		s.grantBuckets()
		s.keep()
	}
	s.trim()
	messages := s.callIdle()
	s.answer()
	s.frees()
	return s.reply, s.tell(messages)
}

// begin makes what there is not. A generation that only clients know is of a Reset that the store has lost.
func (s *step) begin(now int64) {
	c := s.Counter
	if c.head == nil {
		c.head = &head{accounts: map[string]*account{}}
	}
	turned := c.wind(s.Limit, now)
	if s.hold(); turned || s.longer { // nothing counts for as long as that
		c.gone = now/1000 + max(2*c.ring.length.Milliseconds(), s.until-s.now/1000) + 1000
	}
	if c.head.hold = s.until; turned {
		c.tidy(s.Client)
	}
	if h := c.head; s.Window.Gen > h.Gen {
		h.Gen, h.clients, h.idle = s.Window.Gen, 0, 0
	}
}

// tidy deletes some accounts that have nothing in the ring, if there are many, but one.
func (c *Counter) tidy(but string) {
	h, n := c.head, 4
	for name, a := range chance.Order(h.accounts) {
		if n--; n < 0 || len(h.accounts) <= many {
			return
		}
		if name != but && a.asked+backend.Ahead < c.ring.low {
			if delete(h.accounts, name); a.Window == h.Window {
				h.idle -= a.idle
				if !a.left {
					h.clients--
				}
			}
		}
	}
}

// chargeBucket is the whole of a statement without an account.
func (s *step) chargeBucket() {
	if s.Need > 0 {
		if s.lacks = s.count+s.Need > s.Limit.Tokens; !s.lacks {
			s.give(s.soonest(), s.Need)
		}
	} else if s.Window.Gen == s.head.Gen {
		for _, d := range s.Changes {
			s.change(s.ring.place(d), max(d.Tokens, 0))
		}
	}
}

// place is the bucket of a change. Whoever has used tokens may not know which bucket is the present one, or be ahead of a clock that
// stepped back.
func (r *ring) place(d backend.Change) int64 {
	if present := r.low + backend.Buckets; d.Tokens > 0 && d.Bucket == 0 {
		return present
	} else if d.Tokens > 0 {
		return min(d.Bucket, present+backend.Ahead)
	}
	return d.Bucket
}

// soonest is the first bucket in which tokens may be charged: its end must not come before the reply.
func (s *step) soonest() int64 {
	within := min(s.Within, s.Limit.Window/4)
	return backend.Bucket(s.now+within.Microseconds(), s.ring.length)
}

// stateBuckets undoes what the last statement did, unless the client has taken its reply, and then applies all that changed since the
// reply that it took. A ring that knows nothing of the account has nothing that could go back.
func (s *step) stateBuckets() {
	if s.of && s.own.seq > s.Known {
		for _, d := range s.own.did {
			s.add(d.Bucket, -d.Tokens)
		}
	}
	if s.Window.Gen == s.head.Gen {
		for _, d := range s.Changes {
			if bucket := s.ring.place(d); d.Tokens > 0 || s.of {
				s.change(bucket, d.Tokens)
			}
		}
	}
}

// change charges n tokens in a bucket, or gives back -n, and records it for the account.
func (s *step) change(bucket, n int64) {
	if n = s.add(bucket, n); n == 0 {
		return
	}
	i, found := slices.BinarySearchFunc(s.did, bucket, func(d backend.Change, bucket int64) int { return int(d.Bucket - bucket) })
	if !found {
		s.did = slices.Insert(s.did, i, backend.Change{Bucket: bucket})
	}
	s.did[i].Tokens += n
}

// give grants n tokens of a bucket.
func (s *step) give(bucket, n int64) {
	if n > 0 {
		s.change(bucket, n)
		s.reply.Grant += n
		s.reply.Grants = append(s.reply.Grants, backend.Change{Bucket: bucket, Tokens: n})
	}
}

// grantBuckets spreads a grant over the buckets in which the client will use it, because a token that is charged in a later bucket than that
// counts for longer. While little is free, it grants for the present bucket only. Clients share what is free by what they would use:
// the weights of those that asked in the bucket before and may still ask in this one are theirs.
func (s *step) grantBuckets() {
	if s.Want == 0 {
		return
	}
	r, limit := s.ring, s.Limit.Tokens
	present, free := r.low+backend.Buckets, max(limit-s.count, 0)
	if s.Need == 0 { // what was promised is not for those who need nothing yet
		free = max(free-r.promised, 0)
	}
	weight := max(s.Pace, s.Need, 1)
	if s.own.asked != present {
		s.own.asked = present
		r.asked = min(r.asked+weight, backend.MaxTokens)
	}
	first, from := s.soonest(), s.now
	next := s.After >= present
	if next {
		first = max(first, min(s.After+1, present+backend.Ahead))
		from = backend.BucketEnd(first-1, r.length)
	}
	span := min(max(int64(math.Floor(float64(float64(free)/float64(limit)*60)-3)), 0), backend.Ahead)
	last := max(present+span, first)

	want, have := s.Need, int64(0)
	if !next {
		have = s.Idle
	}
	most := free
	switch use := s.use(from, backend.BucketEnd(last, r.length)); {
	case s.Exact && s.Need > 0 && s.head.calls > 0: // others may wait for what came back, too
	case s.Exact:
		want = s.Want
	default:
		if use >= 2 {
			want = min(max(want, s.Need+int64(math.Ceil(use+float64(1.5*math.Sqrt(use))))-have), s.Want)
		}
		share := float64(weight) / float64(max(r.before-r.asked, 0)+weight)
		least := float64(weight) / float64(max(r.before, weight))
		most = max(s.Need, min(int64(float64(free)*share), max(free/4, int64(float64(limit)/10*least))))
	}
	take := min(want, free, most)
	if take < s.Least {
		take = 0
	}
	s.lacks = take < want
	left, need := take, s.Need
	for bucket := first; left > 0; bucket++ {
		n := left
		if bucket < last {
			n = min(left, max(need+s.ceil(max(from, backend.BucketEnd(bucket-1, r.length)), backend.BucketEnd(bucket, r.length))-have, need))
			need, have = 0, 0
		}
		s.give(bucket, n)
		left -= n
	}
}

// callIdle calls idle tokens back, if callers wait for more than the client gets. While tokens are short, that is in vain mostly, so it
// calls all, but less and less often: at last, every eight buckets.
// A refusal says when tokens come, so nobody is told that the limit is used up, but some are if tokens have come back before.
func (s *step) callIdle() []Message {
	h, ms, bucket := s.head, s.now/1000, s.length()/backend.Buckets
	if s.Client == "" || s.until > 0 {
		return nil
	}
	idle := h.idle - s.own.idle
	s.reply.Idle = idle
	switch {
	case s.gave && s.ring.promised > 0 && s.count < s.Limit.Tokens:
		s.ring.promised, s.calling = 0, true // they come now
		return s.to(s.refused(), backend.Again)
	case s.Need <= s.reply.Grant:
		return nil
	case s.waits():
		s.reply.Called, s.calling = h.out, true
	}
	if idle == 0 {
		return nil
	}
	if ms-h.told > 2*bucket {
		h.calls = 0
	}
	if h.told = ms; h.calls > 0 && ms-h.at < bucket/4<<min(h.calls-1, 5) {
		return nil
	}
	s.calling = true
	called := s.call(s.some(Sample, Sample, func(a *account) bool { return a.idle > 0 }), idle, idle)
	if h.out = int64(len(called)); h.out > 0 {
		h.calls, h.at = h.calls+1, ms
	}
	s.reply.Called, s.reply.Idle = h.out, h.idle-s.own.idle
	return s.to(called, backend.Recall)
}

// use is how many tokens the client uses between two times at its pace.
func (s *step) use(from, to int64) float64 {
	return float64(s.Pace) * (float64(to-from) / float64(s.ring.length.Microseconds()))
}

func (s *step) ceil(from, to int64) int64 { return int64(math.Ceil(s.use(from, to))) }

// leaves is when n tokens have left the ring, us.
func (r *ring) leaves(n int64) int64 {
	left, i := int64(0), 0
	for ; i < len(r.counts) && (i == 0 || left < n); i++ {
		left += r.counts[i]
	}
	return backend.BucketEnd(r.low+int64(i)-1+backend.Buckets, r.length)
}

// frees says when tokens come, if the client got fewer than it could use: when as many have left the ring as its first caller and
// others that were told before it wait for. What is free already is theirs.
func (s *step) frees() {
	if !s.lacks {
		return
	}
	r, short, first := s.ring, max(s.Need-s.reply.Grant, 0), s.Least
	if s.Client == "" {
		first = s.Need
	}
	if r.promised == 0 {
		free := s.Limit.Tokens - s.count
		short, first = min(short, max(short-free, 1)), first-free
	}
	first = min(short, first)
	s.reply.Frees = max(time.Duration(r.leaves(r.promised+max(first, 1))-s.now)*time.Microsecond, 0)
	if !s.calling && s.reply.Frees > 0 { // else it asks again before that
		r.promised = min(r.promised+max(first, min(short, 1)), s.Limit.Tokens)
	}
}
