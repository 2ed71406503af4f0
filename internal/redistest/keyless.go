package redistest

import (
	"bytes"
	"strconv"
	"strings"
)

// RefuseKeyless makes the proxy refuse scripts that name no key, as some serverless services
// do, or ends that. Their callers get an error, and no other command is touched. A command that comes
// in several chunks passes.
func (p *Proxy) RefuseKeyless(on bool) { p.locked(func() { p.refusesKeyless = on }) }

// Keyless returns how many scripts [Proxy.RefuseKeyless] has refused.
func (p *Proxy) Keyless() int64 { return p.keyless.Load() }

// unknown is a command that no server knows. Its error takes the place of the script's reply in a pipeline.
const unknown = "*1\r\n$19\r\nSCRIPT-WITHOUT-KEYS\r\n"

// withoutKeyless puts an unknown command in the place of each script that names no key.
func (p *Proxy) withoutKeyless(data []byte) []byte {
	on := false
	p.locked(func() { on = p.refusesKeyless })
	if !on {
		return data
	}
	var out []byte
	for rest := data; len(rest) > 0; {
		args, after, ok := command(rest)
		switch {
		case !ok:
			return append(out, rest...)
		case isKeyless(args):
			p.keyless.Add(1)
			out = append(out, unknown...)
		default:
			out = append(out, rest[:len(rest)-len(after)]...)
		}
		rest = after
	}
	return out
}

func isKeyless(args []string) bool {
	if len(args) < 3 || args[2] != "0" {
		return false
	}
	switch strings.ToLower(args[0]) {
	case "eval", "evalsha", "eval_ro", "evalsha_ro":
		return true
	}
	return false
}

// command reads the command at the beginning of data, an array of bulk strings, and returns what follows.
func command(data []byte) (args []string, rest []byte, ok bool) {
	n, rest, ok := length(data, '*')
	for range n {
		var size int
		if size, rest, ok = length(rest, '$'); !ok || len(rest) < size+2 {
			return nil, nil, false
		}
		args, rest = append(args, string(rest[:size])), rest[size+2:]
	}
	return args, rest, ok
}

// length reads a line of a sigil and a number.
func length(data []byte, sigil byte) (n int, rest []byte, ok bool) {
	line, rest, ok := bytes.Cut(data, []byte("\r\n"))
	if !ok || len(line) < 2 || line[0] != sigil {
		return 0, nil, false
	}
	n, err := strconv.Atoi(string(line[1:]))
	return n, rest, err == nil && n >= 0
}
