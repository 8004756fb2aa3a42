package wheel

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tick = 50 * time.Millisecond
		c := NewClock(tick)
		start := time.Now()
		if c.Now() != tick || c.After(0) != 1 {
			t.Errorf("begins at %v, in tick %d", c.Now(), c.After(0))
		}
		time.Sleep(10 * time.Millisecond) // the bubble's clock
		if c.Now() != tick+10*time.Millisecond || c.After(0) != 2 || c.After(40*time.Millisecond) != 2 || c.After(41*time.Millisecond) != 3 {
			t.Errorf("10 ms later it is %v", c.Now())
		}
		if w := c.Wall(c.At(start)); !w.Equal(start) {
			t.Errorf("%v became %v", start, w)
		}
	})
}
