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
{{range .Rows}}<tr{{if eq (index . 0) $.Advice.Policy}} class="chosen"{{end}}>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>
<p>{{range .Columns}}{{if .About}}<b>{{.Name}}</b>: {{.About}}. {{end}}{{end}}</p>
{{.Chart}}</body>
</html>
`))

// page puts the chart under the table and the recommendation.
func (r *tuneReport) page(chart []byte) []byte {
	var b bytes.Buffer
	err := page.Execute(&b, map[string]any{
		"Heading": r.heading, "Advice": r.Recommendation, "Notes": r.Notes, "Columns": tuneColumns, "Rows": r.cells(),
		"Chart": template.HTML(chart), // whose texts are escaped
	})
	if err != nil {
		panic(err) // to a buffer, of our own types
	}
	return b.Bytes()
}
