package fleet

import (
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// row is a line of the table and, of the rule adaptive, what is expected of it.
type row struct {
	name string
	scenario
	bar bar
}

// bar is the most that each measure may be, and the least of admitted. Where it
// is 0 nothing is expected.
type bar struct {
	calls, stranded, waited, admitted float64
	refusesNone                       bool
}

// shapes is one fleet under every shape of demand, and a larger one.
var shapes = []row{
	{"equal", hundred(equal, 1.5), bar{calls: 0.019, stranded: 0.006, waited: 0.0005, admitted: 0.999}},
	{"zipf 1.2", hundred(zipf, 1.5), bar{calls: 0.014, stranded: 0.006, waited: 0.0005, admitted: 0.999}},
	{"one hot process", hundred(oneHot, 1.5), bar{calls: 0.005, stranded: 0.007, waited: 0.0001, admitted: 0.997}},
	{"hot set moves", hundred(moves, 1.5), bar{calls: 0.018, stranded: 0.01, waited: 0.0005, admitted: 0.999}},
	{"bursts", hundred(bursts, 1.5), bar{calls: 0.03, stranded: 0.01, waited: 0.0015, admitted: 0.999}},
	{"below the limit", hundred(equal, 0.5), bar{calls: 0.012, waited: 0.0002, refusesNone: true}},
	{"zipf 1.2, 1,000 processes", scenario{zipf, 1000, reservoir.PerMinute(600_000), 1.5, 5}, bar{calls: 0.012, stranded: 0.01, waited: 0.0002, admitted: 0.999}},
}

func hundred(k *kind, demand float64) scenario {
	return scenario{k, 100, reservoir.PerMinute(60_000), demand, 5}
}

// sizes is zipf demand in fleets and windows of three sizes. The limit is 600 per
// process and minute; in the windows of an hour it is 600 per process and hour,
// because ten million requests would tell no more than these.
func sizes() (rows []row) {
	for _, span := range []struct {
		name    string
		window  time.Duration
		tokens  int64 // per process
		windows int
	}{{"1 s", time.Second, 10, 30}, {"60 s", time.Minute, 600, 5}, {"1 h", time.Hour, 600, 3}} {
		for _, n := range []int{10, 100, 1000} {
			limit := reservoir.Limit{Tokens: span.tokens * int64(n), Window: span.window}
			rows = append(rows, row{
				name:     table.Commas(int64(n)) + " × " + span.name,
				scenario: scenario{zipf, n, limit, 1.5, span.windows},
			})
		}
	}
	return rows
}
