// Package seeds runs whole limiters under many seeds. What happens next is drawn by one
// goroutine, on a virtual clock and a network that loses, repeats and reorders, so that
// each run is the same again and the laws can be checked after every step. It has tests
// only.
package seeds
