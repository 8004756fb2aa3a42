package stateclient

func newUnary(l *lane) driver { return limbo{l} }
