package naive

import (
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	minute = Window{0, 60, 0}
	next   = Window{60, 120, 0}
)

func fixed() *Log { return &Log{Limit: 3} }

func TestAWindowSpendsItsLimit(t *testing.T) {
	l := fixed()
	l.Grant(1, minute, 2)
	l.Grant(2, minute, 2)
	require.NoError(t, l.Spend(5, 1, minute, 2))
	require.NoError(t, l.Spend(6, 2, minute, 1))
	require.EqualError(t, l.Spend(7, 2, minute, 1), "4 tokens of {0 60 0} are spent from 0 to 60, for 1 limits of 3")
}

func TestALossAndAResetAreALimitMore(t *testing.T) {
	l := fixed()
	l.Losses = []int64{4}
	l.Grant(1, minute, 7)
	require.NoError(t, l.Spend(5, 1, minute, 6))
	require.Error(t, l.Spend(6, 1, minute, 1))

	l = fixed()
	l.Resets = []int64{4}
	fresh := Window{4, 64, 0}
	l.Grant(1, minute, 3)
	l.Grant(2, fresh, 4)
	require.NoError(t, l.Spend(5, 1, minute, 3), "who has not heard of a Reset spends what it holds")
	require.NoError(t, l.Spend(5, 2, fresh, 3))
	require.Error(t, l.Spend(6, 2, fresh, 1), "a Reset adds nothing to a window")
}

func TestATokenIsSpentInItsWindowByItsOwner(t *testing.T) {
	l := fixed()
	l.Grant(1, minute, 3)
	l.Grant(1, next, 3)
	require.NoError(t, l.Spend(59, 1, minute, 1))
	require.Error(t, l.Spend(60, 1, minute, 1))
	require.Error(t, l.Spend(59, 1, next, 1))
	require.EqualError(t, l.Spend(60, 2, next, 1), "client 2 uses 1 tokens of {60 120 0}, and has 0")
	require.NoError(t, l.Return(1, next, 2))
	require.Error(t, l.Return(1, next, 2))
}

func TestWindowsDoNotOverlap(t *testing.T) {
	l := fixed()
	early := Window{50, 110, 0}
	l.Grant(1, minute, 3)
	l.Grant(2, early, 3)
	require.NoError(t, l.Spend(59, 1, minute, 3))
	require.Error(t, l.Spend(59, 2, early, 1))
}

func TestARefundIsNotSpent(t *testing.T) {
	l := fixed()
	l.Grant(1, minute, 3)
	require.NoError(t, l.Spend(5, 1, minute, 3))
	require.NoError(t, l.Refund(5, 1, minute, 1))
	require.NoError(t, l.Spend(6, 1, minute, 1))
	require.NoError(t, l.Refund(5, 1, minute, 2))
	require.Error(t, l.Refund(5, 1, minute, 1), "once")
}

func TestFreeIsWhatNobodyHasOrSpent(t *testing.T) {
	free := func(l *Log, now int64, w Window) [2]int64 {
		least, most := l.Free(now, w)
		return [2]int64{least, most}
	}
	l := &Log{Limit: 10}
	l.Grant(1, minute, 5)
	require.NoError(t, l.Spend(5, 1, minute, 1))
	l.Declare(5, 1, minute, 2)
	require.Equal(t, [2]int64{3, 3}, free(l, 6, minute))
	require.NoError(t, l.Drop(6, 1, minute, 1))
	require.Equal(t, [2]int64{3, 4}, free(l, 6, minute), "a killed client's may be back or not")
	require.NoError(t, l.Return(1, minute, 3))
	require.Equal(t, [2]int64{6, 7}, free(l, 6, minute))
	require.Equal(t, [2]int64{10, 10}, free(l, 6, next))

	l = &Log{Limit: 10, Rolls: 60, Linger: 3}
	l.Grant(1, Window{}, 5)
	require.NoError(t, l.Spend(5, 1, Window{}, 4))
	require.Equal(t, [2]int64{5, 5}, free(l, 64, Window{}))
	require.Equal(t, [2]int64{5, 9}, free(l, 65, Window{}))
	require.Equal(t, [2]int64{9, 9}, free(l, 68, Window{}))
}

func TestARollingLimitHoldsInEveryInterval(t *testing.T) {
	l := &Log{Limit: 3, Rolls: 60}
	l.Grant(1, Window{}, 9)
	require.NoError(t, l.Spend(0, 1, Window{}, 1))
	require.NoError(t, l.Spend(10, 1, Window{}, 2))
	require.Error(t, l.Spend(59, 1, Window{}, 1))
	require.NoError(t, l.Return(1, Window{}, 1))

	l = &Log{Limit: 3, Rolls: 60}
	l.Grant(1, Window{}, 9)
	require.NoError(t, l.Spend(0, 1, Window{}, 1))
	require.NoError(t, l.Spend(10, 1, Window{}, 2))
	require.NoError(t, l.Spend(60, 1, Window{}, 1))
	require.Error(t, l.Spend(69, 1, Window{}, 1))
}
