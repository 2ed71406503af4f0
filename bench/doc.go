// Package bench measures the library side by side with its peers. It is a
// module of its own, so that nobody who imports the library inherits them.
//
// The peers' own packages are used as published. What was published without a
// Go implementation is written here from its description, in a file of its own:
// see [Rockset].
//
// Package fleet, below this one, models many processes that share a limit.
package bench
