// Package rollout moves keys from one store to another while both are in use: a
// stable share of the keys, in percent, that is changed while programs run, as by
// a feature flag. A key that is moved takes its open window along. It does not get
// a second limit, and it finds its way back.
//
//	store, err := rollout.New(old, new, 0, 0)
//	limiter, err := reservoir.New(store, reservoir.PerHour(5000))
//	...
//	err = store.SetPercent(0, 50) // whenever the flag changes
//
// # How a key moves
//
// A key has a place between 0 and 100 percent, by a hash of its name: the same in
// every process, for ever. The flag is a range, low to high. Keys below low are
// counted in the new store, keys from high on in the old one. Keys between are
// counted in both: a token is handed out only when both stores have charged it,
// and each store refuses by itself.
//
// Between old and new a key is in both. So while processes differ by one step of
// the flag, one store has heard of everything: the old one as long as nobody has
// left it, the new one from then on. That one alone keeps the limit. Nothing is
// copied, and no process needs to know what the others have set.
//
// A key that is put into both is so from its next call on. The window that is open
// in one store is adopted by the other, with its end, and each client states what
// it holds of it. A key that leaves the store in which it was before stays in both
// until a window's length has passed (and a tenth of it, a second at most, and a
// second for clocks): a window that was open when the last process put the key
// into both is over then.
//
// # Rolling out
//
// Start at 0, 0: all keys are in the old store, and the new one is not called. The
// flag then takes these steps, with as many stops on the way as you like:
//
//	0, 0       all old
//	0, 5       5 % in both: look at errors and latency
//	5, 5       5 % new
//	5, 100     the rest in both
//	100, 100   all new, once the longest window has passed; the old store is not called any more
//
// Take a step when all processes have the one before: that is the one rule, and all
// that has to be the same everywhere. It need not be quick. Each step moves one end
// of the range, or both away from each other. Where low and high have met, wait for
// the length of the longest window before you remove the roll-out or the old store.
//
// A process that starts knows no earlier step, and takes the range it is given to
// have been in force for ever. When low and high have met less than the longest
// window ago, start it with the range before, and then set the last one.
//
// # Going back
//
// The same steps the other way round: 100, 100, then 0, 100, then 0, 0. From both
// the way back is free: 0, 0, then 0, 5, then 0, 0 has never left the old store,
// which has counted everything, and to return takes effect at once. It is the same
// from 5, 5 to 5, 100 and back for the rest of the keys. So try a new store by
// keys in both. It may fail then; see below.
//
// To give a step up that only some processes have got counts as a step, too: it may
// be taken at once if the step only put keys into both. If it took keys out of
// both, first let all have it.
//
// # What is promised
//
// With that one rule, over all processes and at any time: no window of a key has
// more tokens spent than its limit, and none begins before the one before it is
// over. That holds for batches and for direct calls, whatever is lost, late or
// repeated on the way to either store.
//
// Not promised: if processes are more than a step apart, some count a key only in
// the old store and some only in the new one. Each store still keeps the limit for
// those who ask it, so there are at most two limits, while it lasts. What the
// clocks of the two stores differ by, a window may begin early when its key leaves
// a store; by more than 25 ms it costs tokens and calls while keys are in both, too.
//
// A store that loses data may exceed the limit with or without a roll-out. A window
// that moved may be used a little less than whole: tokens that the old store charged
// and the new one did not stay with their client. Its next statement gets them as soon
// as the new store has them, too; otherwise they lie idle until the window ends.
//
// # Debt, requests of several tokens, windows of another length
//
// Each store charges a client's debt once. It is settled when both have charged it.
//
// A caller that needs several tokens at once gets them when both stores have as many.
// Otherwise neither store's tokens are handed out, and the new store charges nothing.
//
// A call whose key has a window of another length in either store changes nothing in
// both, and its reply tells that length. If that window opens while the call is on its
// way from one store to the other, a direct call is undone; what the old store has just
// granted to a statement stays with its client, as above.
//
// # What it costs
//
// Keys in one store: a pass over the key's name and, once the range has changed, a
// look at the clock. No allocation, and no call more than without.
//
// Keys in both: two calls for one, one after the other, so twice the time; a fetch
// timeout must allow for that. The first calls of a process in a window of a key
// make two or three more, to find the window and have it adopted. A store that has
// adopted a window learns for a twentieth of its length, as after a loss. It grants
// what callers wait for, or L/1000 if that is more, so there are more calls in that
// time. A Store takes 8 KB, and the key's length and 96 bytes for each of up to 1024
// keys whose windows in both stores it remembers.
//
// # When a store fails
//
// Keys that have one store depend on that one. For keys in both an error of either
// store is an error of the call: never a second limit. Stock that processes hold is
// spent as usual, and the limiter's failure policy answers for the rest. Its breakers
// hold apart the keys that are in the old store, in the new one and in both, and
// the stores' own shards; see Store.Shard.
//
// If the new store fails while keys are in both on their way from the old one, set
// the range back: the old store answers for them at once. If it fails when keys are
// in it alone, go back by both: they are errors until the longest window has
// passed after the last step, since nobody knows what was spent.
// If the old store fails, wait for it, or go on to the new one, in the same way.
//
// Direct calls that the new store refuses, or does not answer, are undone in the old
// one. A goroutine does that, in up to three tries, and goes on for a second at most
// when the call's context has ended. If all tries are lost, the tokens stay charged
// until the window ends or the process' next undo of the key. In the ledger of the old
// store all undos of a process in one window have one entry, mostly.
package rollout
