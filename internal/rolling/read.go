package rolling

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// entry is the text of a client's field; see lua/rolling.lua.
var entry = regexp.MustCompile(`^(~?)([-0-9 ]+)(\+?)(\d*)@?(\d*)$`)

// Read returns the ring that a hash of lua/rolling.lua holds, and whether the hash has that form.
func Read(fields map[string]string) (Ring, bool) {
	if len(fields) == 0 {
		return Ring{}, true
	}
	h, c := numbers(fields["h"], 6), numbers(fields["c"], 8)
	length := time.Duration(c[0]) * time.Millisecond
	if h[0] <= 0 || length < backend.MinRolling || length > backend.MaxWindow {
		return Ring{}, false
	}
	since := h[0]
	after := func(n int64) int64 { // 0 = never
		if n > 0 {
			n += since
		}
		return n
	}
	since1 := func(n int64) int64 { return max(after(n)-1, 0) }
	r := Ring{own: make(map[string]account), sums: sums{
		length: length, last: since + h[1], sum: h[2], total: h[3], present: h[4], idle: h[5], ahead: c[1], learn: after(c[2]),
		void: since1(c[3]), out: c[4], at: since1(c[5]), calls: c[6],
	}}
	r.low = backend.Slice(r.last, length) - backend.Slices
	for name, text := range fields {
		if client := strings.TrimPrefix(name, ".."); len(name) > 2 {
			m := entry.FindStringSubmatch(text)
			if m == nil {
				return Ring{}, false
			}
			if numbers(m[5], 1)[0] != c[7] {
				continue
			}
			n := numbers(m[2], 7)
			a := account{
				name: since + n[0], slice: backend.Slice(since, length) + n[1], granted: n[2], spent: n[2] - n[3] - n[4], returned: n[4],
				refunded: n[5], debt: n[6], present: m[1] == "", called: m[3] != "" && m[4] == "",
			}
			if m[4] != "" {
				a.idle = n[3] - numbers(m[4], 1)[0]
			}
			r.own[client] = a
		} else if name >= "0" && '0' <= name[0] && name[0] < '0'+room {
			r.count[name[0]-'0'] = numbers(text, 1)[0]
		}
	}
	return r, true
}

// numbers returns n numbers of a text, 0 for those that are missing or none.
func numbers(text string, n int) []int64 {
	list := make([]int64, n)
	for i, word := range strings.Fields(text) {
		if i < n {
			list[i], _ = strconv.ParseInt(word, 10, 64)
		}
	}
	return list
}
