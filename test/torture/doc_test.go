// Package torture runs real processes against real Redis servers under a random sequence
// of faults, and compares their results with the library's promises.
//
// A run is a list of scenarios, made from a seed. A scenario is a topology and the faults
// that hit it, one after the other, under load. Every process reports the result of each
// request to the runner in a journal. The journal is a pipe, so that a killed process
// leaves an exact record too. The judge is a pure function from journals and faults to
// findings. It does not use Redis, and its own tests use journals with broken promises.
//
// Each of nine kinds of limit answers one question:
//
//	tight   a short window and twice the demand: is more admitted than the limit?
//	ample   a short window and less demand: does anybody starve?
//	fresh   the same as tight, reset at random: does each window count by itself?
//	daily   the same by a calendar, whose midnight comes in the run: does it end the window?
//	ledger  a window that outlasts the run, in small batches, settled below and above the charge: is a token lost?
//	stock   the same in large batches: does a caller with stock notice anything?
//	open    the same in small batches, with FailOpen: is what was admitted without the store Overdrawn, once, and not charged?
//	local   the same with FailLocal: and is it no more than each process' share?
//	rolling a small rolling limit, in processes that fetch in several ways, wait and refund: does any interval of its window see more than it?
//
// The package needs Linux, where it can preload a clock and a child ends with its parent.
package torture
