package reservoir

// Figure is a field of [Stats] as a metric, for those who export Stats to a monitoring
// system: package promlimit and package otellimit make theirs from it.
type Figure struct {
	Name  string // lower-case words joined by dots, such as "tokens.spent"
	Unit  string // what Value counts: "token", "call", "request" or "key"
	Help  string // one sentence
	Gauge bool   // Value may go down; otherwise it is a counter, which never does
	Value func(s *Stats) int64
}

// Figures returns every field of [Stats] once. A program that does not call it does not
// contain it.
func Figures() []Figure {
	counter := func(name, unit, help string, value func(s *Stats) int64) Figure {
		return Figure{Name: name, Unit: unit, Help: help, Value: value}
	}
	gauge := func(name, unit, help string, value func(s *Stats) int64) Figure {
		return Figure{Name: name, Unit: unit, Help: help, Gauge: true, Value: value}
	}
	return []Figure{
		gauge("keys", "key", "Keys held in memory.", func(s *Stats) int64 { return int64(s.Keys) }),

		counter("tokens.taken", "token", "Tokens that the store charged to this process.", func(s *Stats) int64 { return s.Taken }),
		counter("tokens.refunded", "token", "Tokens that Refund took back from requests.", func(s *Stats) int64 { return s.Refunded }),
		counter("tokens.spent", "token", "Tokens that admitted requests used, refunded ones included.", func(s *Stats) int64 { return s.Spent }),
		counter("tokens.returned", "token", "Tokens given back to the store.", func(s *Stats) int64 { return s.Returned }),
		counter("tokens.expired", "token", "Tokens whose window ended before they were used.", func(s *Stats) int64 { return s.Expired }),
		gauge("tokens.held", "token", "Tokens in memory, to be spent.", func(s *Stats) int64 { return s.Held }),

		counter("store.calls", "call", "Calls to the store, of any kind.", func(s *Stats) int64 { return s.StoreCalls }),
		counter("store.syncs", "call", "Calls to the store that were statements of account: fetches and give-backs.", func(s *Stats) int64 { return s.Syncs }),
		counter("requests.waited", "request", "Requests that waited on the network.", func(s *Stats) int64 { return s.Waited }),
		counter("requests.denied", "request", "Requests refused.", func(s *Stats) int64 { return s.Denied }),
		counter("requests.failed", "request", "Requests that ended in a store error.", func(s *Stats) int64 { return s.Failed }),

		counter("prefetches", "call", "Fetches ahead of need.", func(s *Stats) int64 { return s.Prefetches }),
		counter("probes", "call", "Looks whether an exhausted key has tokens again.", func(s *Stats) int64 { return s.Probes }),
		counter("give_backs", "call", "Returns of an idle excess to the store.", func(s *Stats) int64 { return s.GiveBacks }),
		gauge("tokens.stranded", "token", "Tokens held whose key is exhausted in the store.", func(s *Stats) int64 { return s.Stranded }),

		counter("requests.fallback", "request", "Requests that the failure policy admitted or refused, the store being away.", func(s *Stats) int64 { return s.Fallbacks }),
		gauge("tokens.owed", "token", "Tokens that the failure policy admitted and that the store is still to charge.", func(s *Stats) int64 { return s.Owed }),

		counter("tokens.recovered", "token", "Tokens whose grant was lost on the way and handed over again.", func(s *Stats) int64 { return s.Recovered }),
		counter("tokens.reasserted", "token", "Tokens that the store had forgotten and has charged again.", func(s *Stats) int64 { return s.Reasserted }),
		counter("tokens.unknown", "token", "Tokens of direct calls that failed and may have been charged for nothing.", func(s *Stats) int64 { return s.Unknown }),
	}
}
