// Package guard carries panics of users' code (a store, a hook, a function of an option)
// from the goroutine where they happen to the caller that waits for it.
package guard

import (
	"errors"
	"fmt"
	"log"
	"runtime/debug"
)

// ErrGoexit is the error of a call in which users' code called runtime.Goexit.
var ErrGoexit = errors.New("the store, or the function of WithLimits, called runtime.Goexit")

// panicError is a panic as an error.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", p.value, p.stack) }

// Do runs f and returns its error, or its panic as one.
func Do(f func() error) (err error) {
	normal := false
	defer func() {
		if !normal {
			err = Recovered(recover())
		}
	}()
	err = f()
	normal = true
	return err
}

// Recovered returns value, which a deferred function has just recovered, as the error that
// Do would return.
func Recovered(value any) error { return &panicError{value: value, stack: debug.Stack()} }

// Call runs f and then end, with the error of f, its panic as one, or ErrGoexit if f ends
// the goroutine.
func Call(f func() error, end func(error)) {
	err := ErrGoexit
	defer func() { end(err) }()
	err = Do(f)
}

// IsPanic reports whether err is a panic that Do has caught.
func IsPanic(err error) bool {
	_, ok := errors.AsType[*panicError](err)
	return ok
}

// Raise panics if err is a panic that Do has caught, with the same value. It returns
// other errors.
func Raise(err error) error {
	if p, ok := errors.AsType[*panicError](err); ok {
		panic(p.value)
	}
	return err
}

// Log runs f. Nobody waits for a panic of f, so Log writes it to the standard logger, as
// net/http does with panics of handlers.
func Log(f func()) {
	Unheard(Do(func() error { f(); return nil }))
}

// Unheard logs err if it is a panic that Do has caught, or ErrGoexit. It is for an error
// that no caller gets. Other errors are counted and reported where they happen.
func Unheard(err error) {
	if IsPanic(err) || err == ErrGoexit {
		log.Printf("reservoir: %v", err)
	}
}
