// Package rollout moves keys from one store to another while both are in use. It moves
// a stable share of the keys, in percent, which may change while programs run, as with
// a feature flag. A key takes its open window along, so it gets no second limit, and it
// can move back.
//
//	store, err := rollout.New(old, new, 0, 0)
//	limiter, err := reservoir.New(store, reservoir.PerHour(5000))
//	...
//	err = store.SetPercent(0, 50) // whenever the flag changes
//
// # How a key moves
//
// A hash of its name gives each key a position between 0 and 100 percent, which is the
// same in every process and never changes. The flag is a range, low to high. Keys below
// low are counted in the new store, keys from high on in the old one. Keys between are
// counted in both: a token is handed out only when both stores have charged it, and
// either store may refuse.
//
// A key that moves from old to new is in both for a time. So while processes differ by
// one step of the flag, one store receives every charge: the old one until the first
// process leaves it, the new one from then on. That store alone keeps the limit. Nothing
// is copied, and no process needs the settings of the others.
//
// SetPercent puts a key into both from its next call on. If one store has a window
// open, the other adopts it with its end, and each client states the tokens that it
// holds. A key that leaves its former store stays in both for a window's length, plus a
// tenth of it (at most a second), plus a second for clocks. By that time, a window that
// was open when the last process put the key into both is over.
//
// # Rolling out
//
// Start at 0, 0: all keys are in the old store, and the new one is not called. Then
// move the flag in these steps, with as many stops between them as you like:
//
//	0, 0       all old
//	0, 5       5 % in both: look at errors and latency
//	5, 5       5 % new
//	5, 100     the rest in both
//	100, 100   all new; once the longest window has passed, the old store is no longer called
//
// The one rule is to take a step only when all processes have taken the one before.
// They need not take it at the same time. Each step moves one end of the range, or both
// away from each other. When low and high are equal, wait for the length of the longest
// window before you remove the roll-out or the old store.
//
// A process that starts has no record of earlier steps, and assumes that its first range
// was always in force. If low and high became equal less than the longest window ago,
// start the process with the range before that, and then set the last one.
//
// # Going back
//
// Take the same steps in reverse: 100, 100, then 0, 100, then 0, 0. Keys in both go back
// at once. With 0, 0, then 0, 5, then 0, 0, no key has left the old store, which has
// counted everything. The same holds for the other keys with 5, 5, then 5, 100, then
// 5, 5. So try a new store with keys in both; if it fails, see below.
//
// Undoing a step that only some processes have taken is a step too. Take it at once if
// the undone step only put keys into both. If that step took keys out of both, first let
// all processes take it.
//
// # What is promised
//
// If you follow that one rule, all processes together never spend more tokens in a
// window of a key than its limit, and no window begins before the last one is over. That
// holds for batches and for direct calls, even if calls to either store are lost, late or
// repeated.
//
// Not promised: if processes are more than a step apart, some count a key only in the
// old store and some only in the new one. Each store still keeps the limit for its own
// callers, so the key has at most two limits for as long as this lasts. The same holds if
// a limit gets a shorter window during a roll-out: its keys may leave a store before the
// longer windows there are over. If the stores' clocks differ, a window may begin early by
// the difference when its key leaves a store. A difference of more than 25 ms also costs
// tokens and calls while keys are in both.
//
// A store that loses data may exceed the limit with or without a roll-out. Some tokens of
// a window that moved may remain unused, because tokens that only the old store charged
// stay with their client. Its next statement gets them if the new store has them too;
// otherwise they lie idle until the window ends.
//
// # Debt, requests of several tokens, windows of another length
//
// Each store charges a client's debt once. The debt is settled when both have charged it.
//
// A caller that needs several tokens at once gets them if both stores have that many.
// Otherwise neither store's tokens are handed out, and the new store charges nothing.
//
// If either store has a window of another length open, a call changes nothing in either,
// and its reply names that length. If that window opens between the calls to the two
// stores, a direct call is undone; tokens that the old store has just granted to a
// statement stay with their client, as above.
//
// # What it costs
//
// A key in one store costs a hash of its name and, once the range has changed, a reading
// of the clock. It costs no allocation and no additional call.
//
// A key in both costs two calls instead of one, one after the other, so the fetch timeout
// must allow for twice the time. The first calls of a process in a window of a key make
// two or three more, to find the window and have it adopted. For a twentieth of a window's
// length after a store has adopted it, the store grants what callers wait for, or L/1000
// if that is more, as after a loss of data. So the store gets more calls in that time. A Store
// takes 8 KB. It remembers the windows of up to 1024 keys in both stores; each takes 96
// bytes and the key's length.
//
// # When a store fails
//
// A key in one store depends on that store. For a key in both, an error of either store
// is an error of the call, so the key never gets a second limit. Processes spend the stock
// that they hold, and the limiter's failure policy decides the rest. The limiter has
// separate breakers for keys in the old store, in the new one and in both, and for the
// stores' own shards; see [Store.Shard].
//
// If the new store fails while keys are in both on their way from the old one, set the
// range back, and the old store answers for them at once. If it fails when keys are only
// there, go back through both. Calls for these keys fail until the longest window has
// passed after the last step, because the old store has no account of what was spent. If
// the old store fails, wait for it, or go on to the new one in the same way.
//
// If the new store refuses a direct call, or does not answer, the call is undone in the
// old one. A goroutine makes up to three attempts, and stops at most a second after the
// call's context has ended. If all attempts fail, the tokens stay charged until the window
// ends or the process undoes another call of the key. In most cases all undos of a process
// in one window share one entry in the old store's ledger.
package rollout
