// Package seeds runs whole limiters under many seeds. One goroutine draws what happens
// next, on a virtual clock and a network that loses, repeats and reorders. So a seed always
// gives the same run, and the laws can be checked after every step.
package seeds
