package grafana_test

import (
	"encoding/json"
	"fmt"

	"github.com/go-reservoir/reservoir/contrib/grafana"
)

// The body of POST /api/dashboards/db of Grafana's API.
func Example() {
	body, err := json.Marshal(map[string]any{"dashboard": json.RawMessage(grafana.Dashboard), "overwrite": true})
	if err != nil {
		panic(err)
	}
	var sent struct{ Dashboard struct{ Title string } }
	fmt.Println(json.Unmarshal(body, &sent), sent.Dashboard.Title)
	// Output: <nil> reservoir
}
