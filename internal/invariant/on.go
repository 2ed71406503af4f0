//go:build race

package invariant

// Enabled says whether assertions are on.
const Enabled = true
