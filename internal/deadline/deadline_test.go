package deadline_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir/internal/deadline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Done closes, and Err tells, at the deadline and not before.
func TestEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watched, polled := deadline.After(context.Background(), time.Second), deadline.After(context.Background(), time.Second)
		begin := time.Now()
		at, ok := watched.Deadline()
		assert.True(t, ok)
		assert.Equal(t, begin.Add(time.Second), at)
		assert.NoError(t, watched.Err())
		<-watched.Done()
		assert.Equal(t, time.Second, time.Since(begin))
		assert.ErrorIs(t, watched.Err(), context.DeadlineExceeded)
		assert.ErrorIs(t, polled.Err(), context.DeadlineExceeded)
		<-polled.Done()
		watched.Release()
		assert.ErrorIs(t, watched.Err(), context.DeadlineExceeded)
	})
}

// Released, it ends at once, with or without somebody who waits, and so do
// contexts that were derived from it.
func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		c := deadline.After(context.Background(), time.Hour)
		child, cancel := context.WithCancel(c)
		defer cancel()
		c.Release()
		<-c.Done()
		<-child.Done()
		assert.ErrorIs(t, c.Err(), context.Canceled)
		unwatched := deadline.After(context.Background(), time.Hour)
		unwatched.Release()
		<-unwatched.Done()
		assert.ErrorIs(t, unwatched.Err(), context.Canceled)
		assert.Nil(t, unwatched.Value("x"))
		assert.Zero(t, time.Since(begin))
	})
}

// It has the values of another context, whose end it does not share.
func TestValues(t *testing.T) {
	type key struct{}
	other, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, 7))
	cancel()
	c := deadline.After(other, time.Hour)
	defer c.Release()
	assert.Equal(t, 7, c.Value(key{}))
	assert.NoError(t, c.Err())
}
