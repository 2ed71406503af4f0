// Package proof holds tests that need tools which the library itself does not:
// rapid's state machines and porcupine's search for a linear order, both against
// the scripts on a real redis-server, and one trace replayed through every policy,
// number of processes and kind of store. There is nothing in it to import.
package proof
