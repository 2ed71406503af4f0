package backend

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Bounds of a valid request. Lua numbers are doubles, so integers are exact only
// below 2^53; the other bounds keep deadlines and memory use reasonable.
const (
	MaxTokens = 1<<53 - 1            // per window
	MinWindow = time.Millisecond     // the resolution of a stored end
	MaxWindow = 366 * 24 * time.Hour // a leap year
	MaxKeyLen = 4096                 // bytes; hash longer keys

	MinRolling = 20 * time.Millisecond // the shortest window of a rolling limit
)

// Faults of a request. A store returns them before it sends anything.
var (
	ErrKey    = errors.New("reservoir: bad key")
	ErrLimit  = errors.New("reservoir: bad limit")
	ErrTokens = errors.New("reservoir: bad number of tokens")
)

// Limit is a number of tokens per fixed window. A window opens at its counter's first charge and
// ends Window later. If Window is whole seconds, the end is rounded down to a whole second,
// as in GitHub's script, so that both can share windows. So a first window of a second may
// be almost a second shorter, and then twice Tokens may pass within milliseconds. Other ends
// are rounded up to a millisecond. The zero Limit is not valid in a request.
type Limit struct {
	Tokens int64         // 1 to MaxTokens
	Window time.Duration // whole milliseconds, MinWindow to MaxWindow

	// Calendar is zero if the limit has none. Its periods are the windows, and Window is about the length of one. A
	// store uses it only for the counter's name; a statement says when the present period begins and ends.
	Calendar Calendar

	Shadow bool // requests above the limit pass, and their results say so; only the limiter uses it

	// Rolls says that the limit holds in every interval of the length Window, and not only in
	// windows that follow each other; see [Limit.Rolling].
	Rolls bool
}

// Rolling returns the limit as a rolling one: at no time are more than Tokens spent in any
// interval of the length Window, over all processes, while the store keeps its data, less what
// its clock jumps ahead. Time is cut into buckets of a twentieth of Window, and what is spent in
// a bucket counts until Window has passed since its end. So in overload 5 to 6 % of
// the limit stay unused. Window is at least [MinRolling]. A rolling limit has counters of its
// own. It has no calendar.
func (l Limit) Rolling() Limit {
	l.Rolls = true
	return l
}

// Plain returns the limit as requests carry it: without Shadow.
func (l Limit) Plain() Limit {
	l.Shadow = false
	return l
}

// Counter names what the limit counts in, beside the key: the kind and the length of its windows, as "60s", "1500ms",
// "60s:roll" or "day@Europe/Berlin". Limits that differ only in Tokens share a counter; others never meet.
func (l Limit) Counter() string {
	name := make([]byte, 0, 32)
	switch ms := l.Window.Milliseconds(); {
	case l.Calendar.Period != 0:
		return l.Calendar.name()
	case ms%1000 == 0:
		name = append(strconv.AppendInt(name, ms/1000, 10), "s"...)
	default:
		name = append(strconv.AppendInt(name, ms, 10), "ms"...)
	}
	if l.Rolls {
		name = append(name, ":roll"...)
	}
	return string(name)
}

// Validate returns nil, or an error that wraps ErrLimit and names the fault.
func (l Limit) Validate() error {
	switch {
	case l.Tokens < 1 || l.Tokens > MaxTokens:
		return fmt.Errorf("%w: %d tokens, want 1 to 2^53-1", ErrLimit, l.Tokens)
	case l.Window < MinWindow || l.Window > MaxWindow:
		return fmt.Errorf("%w: a window of %v, want %v to %v", ErrLimit, l.Window, MinWindow, MaxWindow)
	case l.Window%time.Millisecond != 0:
		return fmt.Errorf("%w: a window of %v, want whole milliseconds", ErrLimit, l.Window)
	case l.Rolls && l.Window < MinRolling:
		return fmt.Errorf("%w: a rolling window of %v, want at least %v", ErrLimit, l.Window, MinRolling)
	case l.Rolls && l.Calendar.Period != 0:
		return fmt.Errorf("%w: rolling, and by the calendar", ErrLimit)
	}
	return l.Calendar.validate()
}

// ValidateKey returns nil, or an error that wraps ErrKey. A key may hold any bytes. It
// may not be empty, because an empty key is nearly always an unset variable, or longer
// than MaxKeyLen. The error does not repeat the key.
func ValidateKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: empty", ErrKey)
	case len(key) > MaxKeyLen:
		return fmt.Errorf("%w: %d bytes, want at most %d (hash longer ones)", ErrKey, len(key), MaxKeyLen)
	}
	return nil
}

// Validate returns nil, or an error that wraps ErrKey, ErrLimit or ErrTokens.
func (q *Statement) Validate() error {
	if err := validate(q.Key, q.Limit); err != nil {
		return err
	}
	if err := q.validateRolling(); err != nil {
		return err
	}
	switch {
	case q.Client == "" && (q.Change < 0 || q.Need < 0 || q.Need > 0 && q.Change > 0 || q.Want != 0):
		return fmt.Errorf("%w: a statement without a client that needs %d, wants %d and changes %d", ErrTokens, q.Need, q.Want, q.Change)
	case q.Client != "" && (q.Life < 1 || q.Life > MaxTokens || q.Seq < 1 || q.Seq > MaxTokens):
		return fmt.Errorf("%w: statement %d of life %d", ErrTokens, q.Seq, q.Life)
	case q.Client != "" && (q.Least < 0 || q.Need < q.Least || q.Want < q.Need || q.Want > MaxTokens), q.Need > MaxTokens:
		return fmt.Errorf("%w: want %d, need %d, least %d", ErrTokens, q.Want, q.Need, q.Least)
	case q.Hold < 0 || q.Hold > MaxWindow:
		return fmt.Errorf("%w: a hold of %v, want at most %v", ErrLimit, q.Hold, MaxWindow)
	case outside(q.Mine) || outside(q.Used) || q.Change < -MaxTokens || q.Change > MaxTokens:
		return fmt.Errorf("%w: %d charged of %d, changed by %d", ErrTokens, q.Mine, q.Used, q.Change)
	case outside(q.Window.End) || outside(q.Window.Gen) || outside(q.Idle) || outside(q.Pace) || outside(q.Run):
		return fmt.Errorf("%w: idle %d, pace %d, run %d, in %v", ErrTokens, q.Idle, q.Pace, q.Run, q.Window)
	case (q.Limit.Calendar.Period != 0) != (q.End != 0), q.End != 0 && (q.Begin < 1 || q.End <= q.Begin || q.End-q.Begin > MaxWindow.Milliseconds() || q.End > MaxTokens):
		return fmt.Errorf("%w: a period from %d to %d", ErrLimit, q.Begin, q.End)
	case q.Client != "":
		return validateClient(q.Client)
	}
	return nil
}

// validateRolling checks what only one kind of limit has.
func (q *Statement) validateRolling() error {
	r := &q.Rolling
	switch {
	case !q.Limit.Rolls && (len(r.Changes) > 0 || r.Known != 0 || r.After != 0 || r.Within != 0):
		return fmt.Errorf("%w: buckets, of a limit that is not rolling", ErrTokens)
	case q.Limit.Rolls && (q.Window.End != 0 || q.Mine != 0 || q.Change != 0 || q.Used != 0 || q.Run != 0):
		return fmt.Errorf("%w: a window, of a rolling limit", ErrTokens)
	case len(r.Changes) > MaxChanges, q.Client == "" && len(r.Changes) > 0 && q.Need > 0:
		return fmt.Errorf("%w: changes of %d buckets", ErrTokens, len(r.Changes))
	case outside(r.Known) || outside(r.After) || r.Within < 0 || r.Within > MaxWindow:
		return fmt.Errorf("%w: known %d, after %d, within %v", ErrTokens, r.Known, r.After, r.Within)
	}
	for _, c := range r.Changes {
		if outside(c.Bucket) || c.Tokens < -MaxTokens || c.Tokens > MaxTokens || c.Tokens < 0 && q.Client == "" {
			return fmt.Errorf("%w: %d in bucket %d", ErrTokens, c.Tokens, c.Bucket)
		}
	}
	return nil
}

func outside(n int64) bool { return n < 0 || n > MaxTokens }

// validateClient returns nil, or an error that wraps ErrKey.
func validateClient(name string) error {
	switch {
	case name == "" || len(name) > 64:
		return fmt.Errorf("%w: a client's name has 1 to 64 bytes", ErrKey)
	case slices.Contains([]string{"head", "idle", "0", "1", "2", "3", "4"}, name):
		return fmt.Errorf("%w: the client's name %q is reserved for the ledger", ErrKey, name)
	}
	return nil
}

// validate checks what a request is about.
func validate(key string, l Limit) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	return l.Validate()
}
