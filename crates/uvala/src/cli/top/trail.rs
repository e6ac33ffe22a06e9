//! What rates were in the past: a value for each sample, the newest last.

use std::collections::VecDeque;

use super::rows::PortRow;

/// Values that are kept: as many as the columns of a wide terminal.
const LENGTH: usize = 256;

/// Frames in a second, in each of the last samples.
#[derive(Clone, Debug, Default)]
pub struct Trail(VecDeque<Point>);

/// Frames in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    pub tx: f32,
    pub rx: f32,
    pub drops: f32,
}

impl Point {
    /// Frames that were sent and received.
    pub fn total(self) -> f32 {
        self.tx + self.rx
    }

    pub fn tx(self) -> f32 {
        self.tx
    }

    pub fn rx(self) -> f32 {
        self.rx
    }

    pub fn drops(self) -> f32 {
        self.drops
    }
}

impl std::ops::AddAssign for Point {
    fn add_assign(&mut self, other: Self) {
        self.tx += other.tx;
        self.rx += other.rx;
        self.drops += other.drops;
    }
}

impl From<&PortRow<'_>> for Point {
    #[expect(clippy::cast_possible_truncation, reason = "bars have eight heights")]
    fn from(row: &PortRow<'_>) -> Self {
        let [tx, rx, drops] = [row.tx.frames, row.rx.frames, row.drops_per_s()];
        Self { tx: tx as f32, rx: rx as f32, drops: drops as f32 }
    }
}

impl Trail {
    /// Adds the value of a new sample.
    pub fn push(&mut self, point: Point) {
        if self.0.len() == LENGTH {
            self.0.pop_front();
        }
        self.0.push_back(point);
    }

    /// The last `width` values; zeros where there were no samples yet.
    pub fn last(&self, width: usize, of: fn(Point) -> f32) -> Vec<f32> {
        let kept = self.0.len().min(width);
        let zeros = std::iter::repeat_n(0.0, width - kept);
        zeros.chain(self.0.iter().skip(self.0.len() - kept).map(|point| of(*point))).collect()
    }
}

/// Bars one character high, in proportion to the highest. A value above zero is seen.
pub fn bars(values: &[f32]) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().fold(0.0, f32::max);
    let bar = |value: &f32| match *value {
        value if value <= 0.0 => BARS[0],
        value => BARS[height(value / most, BARS.len() - 1)],
    };
    values.iter().map(bar).collect()
}

/// The step, of so many from 1 on, that this share reaches.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a few")]
fn height(share: f32, steps: usize) -> usize {
    ((share * steps as f32).ceil() as usize).clamp(1, steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_bars_are_in_proportion_and_what_is_little_is_seen() {
        assert_eq!(bars(&[0.0, 0.1, 50.0, 100.0]), " ▁▄█");
        assert_eq!(bars(&[0.0, 0.0]), "  ");
        assert_eq!(bars(&[]), "");
    }

    #[test]
    fn test_a_trail_keeps_the_last_values_and_begins_with_zeros() {
        let mut trail = Trail::default();
        for tx in 0..300_u16 {
            trail.push(Point { tx: tx.into(), ..Point::default() });
        }
        assert_eq!(trail.last(3, Point::tx), [297.0, 298.0, 299.0]);
        assert_eq!(trail.last(1000, Point::tx).len(), 1000);
        assert_eq!(trail.last(257, Point::tx)[..2], [0.0, 44.0]);
    }
}
