package redistest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs goleak's VerifyTestMain for tests that lose a server. It gives goroutines up
// to three seconds more, because a go-redis pool whose dials failed checks only once a
// second whether it was closed. Goleak waits for less.
func Main(m *testing.M) { goleak.VerifyTestMain(patient{m}) }

type patient struct{ *testing.M }

// Run runs the tests, and waits up to three seconds for goroutines that they leave.
func (p patient) Run() int {
	code := p.M.Run()
	for end := time.Now().Add(3 * time.Second); code == 0 && goleak.Find() != nil && time.Now().Before(end); {
	}
	return code
}
