// Package torture runs real processes against real Redis servers under a random
// sequence of faults, and judges what they did by what was promised.
//
// A run is a list of scenarios, made from a seed. A scenario is a topology and
// the faults that befall it, one after the other, under load. Every process
// tells the runner what each of its requests was told, by a journal that is a
// pipe, so that a process which is killed leaves an exact account too. The judge is
// a pure function from journals and faults to findings; it knows nothing of Redis,
// and is itself tested with journals that are wrong.
//
// There are eight kinds of limit, each for what it can show:
//
//	tight   a short window and twice the demand: is more admitted than the limit?
//	ample   a short window and less demand: does anybody starve?
//	fresh   the same as tight, reset at random: does each window count by itself?
//	daily   the same by a calendar, whose midnight comes in the run: does it end the window?
//	ledger  a window that outlasts the run, in small batches, settled below and above the charge: is a token lost?
//	stock   the same in large batches: does a caller with stock notice anything?
//	open    the same in small batches, with FailOpen: is what was admitted without the store charged, once?
//	local   the same with FailLocal: and is it no more than each process' share?
//
// It is for Linux: a clock is preloaded there, and a child ends with its parent.
package torture
