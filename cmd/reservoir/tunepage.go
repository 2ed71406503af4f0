package main

import (
	"errors"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"
)

// extension is what kind of file a report's name stands for, or nothing.
func extension(name string) string {
	switch e := strings.ToLower(filepath.Ext(name)); e {
	case ".html", ".svg":
		return e
	}
	return ""
}

// openReport makes sure that the file of a -report can be written, before time is spent
// on what shall stand there. An earlier report stays until then; a new one that is still
// empty at the end is removed.
func (c *tuning) openReport() (end func(), err error) {
	if c.report == "" {
		return func() {}, nil
	}
	f, err := os.OpenFile(c.report, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, reportError(err)
	}
	return func() {
		if i, err := f.Stat(); err == nil && i.Size() == 0 {
			_ = os.Remove(c.report)
		}
		_ = f.Close()
	}, nil
}

func reportError(err error) error {
	return errors.New("the report cannot be written: " + nameless(err))
}

// writeReport fills the file.
func (c *tuning) writeReport(r *tuneReport) error {
	if c.report == "" {
		return nil
	}
	data := r.chart()
	if extension(c.report) == ".html" {
		data = r.page(data)
	}
	if err := os.WriteFile(c.report, data, 0o644); err != nil {
		return reportError(err)
	}
	return nil
}

// page is the text of the report and the chart. It is XML as well as HTML, so that any
// tool can read it.
func (r *tuneReport) page(chart []byte) []byte {
	return fmt.Appendf(nil, `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<title>reservoir tune</title>
<style>
body { font: 13px/1.5 monospace; margin: 2em; color: #222 }
pre { overflow-x: auto }
svg { max-width: 100%%; height: auto }
</style>
</head>
<body>
<pre>%s</pre>
%s</body>
</html>
`, html.EscapeString(r.text(120)), chart)
}
