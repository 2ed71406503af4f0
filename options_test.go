package reservoir

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

// Every hook there is, also one that is yet to come, is called for all that were
// joined, in their order, and with what it was told.
func TestJoinHooksCallsEachInTurn(t *testing.T) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Hooks]()) {
		var told []int
		told1 := hooked(f, func(reflect.Value) { told = append(told, 1) })
		told2 := hooked(f, func(v reflect.Value) {
			told = append(told, 2)
			assert.False(t, v.IsZero(), f.Name)
		})
		joined := reflect.ValueOf(JoinHooks(told1, Hooks{}, told2)).FieldByIndex(f.Index)
		require.False(t, joined.IsNil(), "%s is not joined", f.Name)
		joined.Call([]reflect.Value{something(f.Type.In(0))})
		assert.Equal(t, []int{1, 2}, told, f.Name)
	}
}

// hooked returns Hooks of which only field f is set.
func hooked(f reflect.StructField, tell func(reflect.Value)) (h Hooks) {
	reflect.ValueOf(&h).Elem().FieldByIndex(f.Index).Set(reflect.MakeFunc(f.Type, func(args []reflect.Value) []reflect.Value {
		tell(args[0])
		return nil
	}))
	return h
}

// something returns a struct whose first field, a string, is set.
func something(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	v.Field(0).SetString("something")
	return v
}

func TestJoinHooksOfNothing(t *testing.T) {
	for _, h := range []Hooks{JoinHooks(), JoinHooks(Hooks{}, Hooks{})} {
		assert.Nil(t, h.StoreCall)
		assert.Nil(t, h.ShardState)
	}
	called := false
	alone := JoinHooks(Hooks{ShardState: func(ShardState) { called = true }})
	assert.Nil(t, alone.StoreCall)
	alone.ShardState(ShardState{})
	assert.True(t, called)
}

// A key is forgotten a bounded number of times in a window, however long that is,
// but for windows of days, where memory counts for more.
func TestIdleOfLongWindows(t *testing.T) {
	for window, idle := range map[time.Duration]time.Duration{
		time.Second:         5 * time.Minute,
		100 * time.Minute:   5 * time.Minute,
		10 * time.Hour:      30 * time.Minute,
		30 * 24 * time.Hour: time.Hour,
	} {
		l := open(t, memstore.New(), Limit{Tokens: 1, Window: window})
		assert.Equal(t, idle, l.idle, window)
	}
}
