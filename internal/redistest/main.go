package redistest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main is the TestMain of tests that lose a server: goleak's, with the patience
// that go-redis asks for. A pool whose dials failed looks once a second whether the
// server is back, and sees only then that it was closed; goleak itself waits for
// less.
func Main(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(patient{m}, options...)
}

type patient struct{ *testing.M }

// Run is the tests, and up to three of the dialler's seconds for what they leave.
func (p patient) Run() int {
	code := p.M.Run()
	for end := time.Now().Add(3 * time.Second); code == 0 && goleak.Find() != nil && time.Now().Before(end); {
	}
	return code
}
