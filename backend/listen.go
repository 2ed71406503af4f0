package backend

import (
	"context"
	"errors"
	"strings"
)

// ErrNoListener is in errors of a store, or of the shard that a key is on, that is no [Listener].
var ErrNoListener = errors.New("the store sends no messages: it is no backend.Listener")

// Listener is an optional interface of a store that can send messages to limiters, so that
// idle tokens come back before a process refuses. A limiter states [Hints].Deaf
// about keys whose messages it would not get, and to stores that are no Listener.
//
// Messages may be lost, late or repeated. No count depends on them, because a limiter
// answers a message by nothing but ordinary statements.
type Listener interface {
	// Listen calls hear, perhaps before Listen returns, with the messages to a process, which
	// is the part of [Statement].Client before its last dot, and with those to all. Calls of
	// hear come one at a time, and no lock of the store is held. Messages wait while hear runs,
	// so it must return soon. Listen does no I/O itself.
	Listen(process string, hear func(Message)) Subscription

	// Publish sends a message to every process that listens. It returns soon after its
	// context ends.
	Publish(ctx context.Context, m Message) error
}

// Subscription is what a process listens to. Its methods are safe for concurrent use.
type Subscription interface {
	// Err returns nil while the process gets the messages about a key. Otherwise it
	// returns the reason, which is an *[Error]: the connection is not made yet or was cut,
	// or the user has no right to listen. It does no I/O. A message of kind Hearing says
	// that it may have changed.
	Err(key string) error

	// Close ends the subscription. A message that has come before that may still be
	// delivered.
	Close()
}

// Message is what a store or a process tells limiters about a key.
type Message struct {
	Kind    Kind
	Key     string // as in requests
	Counter string // of the key, that it is about; none in Changed
	Window  Window // that it is about: it says nothing of any other window
	Limit   int64  // tokens of the limit that the sender has: a larger one may not be used up; 0 in Voided, Changed and Held
}

// Kind is what a message says.
type Kind uint8

const (
	// Hearing: the result of Subscription.Err has changed for some keys. It has no Key.
	Hearing Kind = iota
	// Recall: other processes want the tokens of Key that are idle here. Return what nobody
	// here waits for.
	Recall
	// Exhausted: no token of Key is left in Window, and nobody could be called for idle ones.
	Exhausted
	// Again: tokens have come back to Key since Exhausted.
	Again
	// Voided: Reset has voided Window of Key, which has an End of 0 if none was open. It goes to all who listen.
	Voided
	// Changed: Key may have another limit from now on. It has no Window, and goes to all
	// who listen, by Publish.
	Changed
	// Held: a statement has lengthened the hold of Key. The End of Window is that of the hold, by the store's clock. It goes to
	// all who listen, and only makes them ask.
	Held
)

// RecallPart divides the window. Callers of a process wait that part of it at most, or the timeout of a call if that is less, for the
// tokens that a Recall has asked for; and that long after a Recall, or an answer to one, a store waits for the rest before it takes
// those who have not answered for dead.
const RecallPart = 20

// Process returns the part of a client's name that names its process: the part before the
// last dot, or all of it.
func Process(client string) string {
	if i := strings.LastIndexByte(client, '.'); i >= 0 {
		return client[:i]
	}
	return client
}
