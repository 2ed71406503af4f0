package memcachestore

// Start is for the tests outside the package.
var Start = start
