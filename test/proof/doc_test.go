// Package proof has tests that need tools which the library does not need. Rapid's state
// machines and porcupine's search for a linear order test the scripts on a real
// redis-server. Another test replays one trace through every policy, number of processes
// and kind of store.
package proof
