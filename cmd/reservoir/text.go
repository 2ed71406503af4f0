package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
)

func write(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}

// emit writes a result as JSON or as text.
func emit(w io.Writer, asJSON bool, v any, text string) error {
	if !asJSON {
		return write(w, text)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// quoted returns s, in quotes unless a terminal shows s unchanged. A byte that is not
// UTF-8 may be a terminal command, such as 0x9b.
func quoted(s string) string {
	if q := strconv.Quote(s); s == "" || q != `"`+s+`"` || strings.Contains(s, " ") {
		return q
	}
	return s
}

// oneLine returns the text of err on one line, without the prefix of the library's errors
// and without the name of a file, which may be private. It replaces unprintable characters
// by "?", because a server's reply may hold terminal commands.
func oneLine(err error) string {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	text := strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "?")), " ")
	return strings.TrimPrefix(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text), "reservoir: ")
}
