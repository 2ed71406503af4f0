package guard

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestDo: an error is returned, and a panic travels as one until it is raised again.
func TestDo(t *testing.T) {
	fault := errors.New("fault")
	assert.NoError(t, Do(func() error { return nil }))
	assert.Same(t, fault, Do(func() error { return fault }))
	assert.False(t, IsPanic(fault))
	assert.Same(t, fault, Raise(fault))
	assert.NoError(t, Raise(nil))

	for _, value := range []any{"a hook", fault} {
		err := Do(func() error { panic(value) })
		assert.True(t, IsPanic(fmt.Errorf("wrapped: %w", err)))
		assert.ErrorContains(t, err, fmt.Sprint(value))
		assert.ErrorContains(t, err, "guard_test.go", "where it was")
		assert.PanicsWithValue(t, value, func() { _ = Raise(fmt.Errorf("wrapped: %w", err)) })
	}
	assert.True(t, IsPanic(Do(func() error { panic(nil) })))
}

// TestUnheard: what ended a call that nobody waits for is logged, unless a store's error did.
func TestUnheard(t *testing.T) {
	var b bytes.Buffer
	defer log.SetOutput(log.Writer())
	log.SetOutput(&b)
	Unheard(nil)
	Unheard(errors.New("a store's error"))
	assert.Empty(t, b.String())
	Unheard(Do(func() error { panic("a hook") }))
	assert.Contains(t, b.String(), "reservoir: panic: a hook")
	assert.Contains(t, b.String(), "guard_test.go")
	Unheard(ErrGoexit)
	Log(func() { panic("another hook") })
	assert.Contains(t, b.String(), "reservoir: panic: another hook")
	assert.Contains(t, b.String(), "reservoir: "+ErrGoexit.Error())
}

// TestCall: the end gets whatever ended the call.
func TestCall(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		f    func() error
		want func(error) bool
	}{
		{func() error { return nil }, func(err error) bool { return err == nil }},
		{func() error { return failed }, func(err error) bool { return err == failed }},
		{func() error { panic("x") }, IsPanic},
		{func() error { runtime.Goexit(); return nil }, func(err error) bool { return err == ErrGoexit }},
	} {
		ended := make(chan error, 1)
		go Call(c.f, func(err error) { ended <- err })
		err := <-ended
		assert.True(t, c.want(err), "%v", err)
	}
}
