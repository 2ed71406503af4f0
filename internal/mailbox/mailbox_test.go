package mailbox

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestOffice: messages come in order, one at a time, to each box of a process and no other. A box
// that is slow or sends something itself keeps nobody waiting.
func TestOffice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Office
		blocked, got := make(chan struct{}), make(map[string][]int64)
		var mu sync.Mutex // each box has a goroutine
		hear := func(box string) func(backend.Message) {
			return func(m backend.Message) {
				mu.Lock()
				defer mu.Unlock()
				got[box] = append(got[box], m.Limit)
			}
		}
		o.Open("slow", func(backend.Message) { <-blocked })
		o.Open("a", func(backend.Message) { o.Send("b", backend.Message{Limit: 7}) })
		closeFirst := o.Open("b", hear("first"))
		closeSecond := o.Open("b", hear("second"))
		for n := range int64(3) {
			o.Send("slow", backend.Message{Limit: n})
			o.Send("b", backend.Message{Limit: n})
			o.Send("nobody", backend.Message{})
			synctest.Wait()
		}
		require.Equal(t, map[string][]int64{"first": {0, 1, 2}, "second": {0, 1, 2}}, got)
		require.False(t, closeFirst())
		o.SendAll(backend.Message{Limit: 3})
		synctest.Wait()
		require.ElementsMatch(t, []int64{0, 1, 2, 3, 7}, got["second"])
		require.Len(t, got["first"], 3)
		require.True(t, closeSecond())
		require.False(t, closeSecond(), "once")
		for range 2 * most {
			o.Send("slow", backend.Message{})
		}
		require.Len(t, o.boxes["slow"][0].waiting, most)
		close(blocked)
	})
}
