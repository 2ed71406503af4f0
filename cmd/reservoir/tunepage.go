package main

import (
	"bytes"
	"errors"
	"html/template"
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

// reportFile is the file of a -report. It is made beside the place it is for
// before the replay, so that what cannot be written is known before the time is
// spent, and moved there at the end, so that an earlier report stays until then.
type reportFile struct {
	*os.File // nil = none is wanted, or it is over
	name     string
}

func (c *tuning) createReport() (*reportFile, error) {
	f := &reportFile{name: c.report}
	if c.report == "" {
		return f, nil
	}
	if i, err := os.Stat(c.report); err == nil && !i.Mode().IsRegular() {
		return nil, usagef("bad value for flag -report: want a file")
	}
	var err error
	f.File, err = os.CreateTemp(filepath.Dir(c.report), ".reservoir-tune-*")
	if err != nil {
		return nil, reportError(err)
	}
	return f, nil
}

func reportError(err error) error {
	return errors.New("the report cannot be written: " + nameless(err))
}

// write fills the file and puts it in its place.
func (f *reportFile) write(r *tuneReport) error {
	if f.File == nil {
		return nil
	}
	data := r.chart()
	if extension(f.name) == ".html" {
		data = r.page(data)
	}
	_, err := f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), f.name)
	}
	if err != nil {
		return reportError(err)
	}
	f.File = nil
	return nil
}

// discard removes the file if it was not put in its place.
func (f *reportFile) discard() {
	if f.File != nil {
		_ = f.Close()
		_ = os.Remove(f.Name())
	}
}

// page is XML as well as HTML, so that any tool can read it.
var page = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<title>reservoir tune</title>
<style>
body { font: 15px/1.5 Helvetica, Arial, sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-size: 13px }
td, th { padding: .3em .6em; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left }
.chosen { background: #e8f1f8 }
svg { max-width: 100%; height: auto }
</style>
</head>
<body>
<h1>Which batch policy?</h1>
<p>{{.Heading}}</p>
<h2>Recommended: {{.Advice.Policy}}</h2>
<p>{{.Advice.Reason}}</p>
{{range .Notes}}<p><b>Note.</b> {{.}}</p>
{{end}}<table>
<thead><tr>{{range .Head}}<th title="{{.About}}">{{.Name}}</th>{{end}}</tr></thead>
<tbody>
{{range .Rows}}<tr{{if eq (index . 0) $.Advice.Policy}} class="chosen"{{end}}>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</tbody>
</table>
<p>{{range .Head}}{{if .About}}<b>{{.Name}}</b>: {{.About}}. {{end}}{{end}}</p>
{{.Chart}}</body>
</html>
`))

// page puts the chart under the table and the recommendation.
func (r *tuneReport) page(chart []byte) []byte {
	type head struct{ Name, About string }
	var names []head
	for _, c := range tuneColumns[:r.columns()] {
		names = append(names, head{c.name, c.about})
	}
	var b bytes.Buffer
	err := page.Execute(&b, map[string]any{
		"Heading": r.heading, "Advice": r.Recommendation, "Notes": r.Notes,
		"Head": names, "Rows": r.cells()[1:],
		"Chart": template.HTML(chart), // whose texts are escaped
	})
	if err != nil {
		panic(err) // to a buffer, of our own types
	}
	return b.Bytes()
}
