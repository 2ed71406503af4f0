package reservoir

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Limit is a number of tokens per fixed window: Tokens from 1 to 2^53-1, Window
// in whole milliseconds from 1 ms to 366 days. The zero Limit is not valid: New
// returns ErrLimit for what is out of range, as do calls where WithLimits says it.
//
// A window opens at the first charge of its key and ends exactly Window later.
// By the nature of fixed windows up to twice Tokens may pass in an interval of
// one window's length that straddles a reset.
type Limit = backend.Limit

// PerSecond is a limit of tokens in each second.
func PerSecond(tokens int64) Limit { return Limit{Tokens: tokens, Window: time.Second} }

// PerMinute is a limit of tokens in each minute.
func PerMinute(tokens int64) Limit { return Limit{Tokens: tokens, Window: time.Minute} }

// PerHour is a limit of tokens in each hour.
func PerHour(tokens int64) Limit { return Limit{Tokens: tokens, Window: time.Hour} }
