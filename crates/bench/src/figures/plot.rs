//! Plots as SVG text: one uniform style, for a page of print.
//!
//! Ours are solid lines with circles; each point has a bar from its smallest to its largest sample.
//! What the machine allows is dashed and grey, other software has squares and short dashes, and
//! what others have published has open diamonds and no line. A hollow mark was measured under other
//! circumstances; a cross at the foot stands for a point that could not be measured. Colours are
//! those of Okabe and Ito, which differ for everybody and in grey.

use std::fmt::Write;

/// A plot.
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Lines below it.
    pub caption: Vec<String>,
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// An axis.
pub struct Axis {
    /// What it counts.
    pub label: String,
    /// Whether equal distances are equal ratios.
    pub log: bool,
    /// Whether there is something between two points: kinds are not joined by lines.
    pub joined: bool,
    /// Where its marks are, and what they say; none for marks at round numbers.
    pub ticks: Vec<(f64, String)>,
}

/// How a series looks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Measured here, ours.
    Own(usize),
    /// Measured here, what the machine allows.
    Limit,
    /// Measured here, other software.
    Peer(usize),
    /// Read in a publication.
    Published,
}

/// A line or a cloud of points.
pub struct Series {
    /// In the legend.
    pub name: String,
    /// How it looks.
    pub look: Look,
    /// Its points, from left to right.
    pub points: Vec<Point>,
}

/// A point with its spread.
#[derive(Clone, Copy)]
pub struct Point {
    /// Where.
    pub x: f64,
    /// The median.
    pub y: f64,
    /// Smallest and largest sample.
    pub spread: Option<(f64, f64)>,
    /// What it is.
    pub mark: Mark,
}

/// What a point is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Measured as the others.
    Measured,
    /// Measured under other circumstances, which stand beside it.
    Elsewhere(&'static str),
    /// Not measured: a cross at the foot of the plot, `y` means nothing.
    Missing,
}

const FONT: &str = r#"font-family="Helvetica, Arial, sans-serif" font-size="12""#;
const WIDTH: f64 = 720.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 46.0;
const HEIGHT: f64 = 300.0;
const COLOURS: [&str; 6] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];

/// The range of an axis on paper and in values.
struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
    log: bool,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.ln() - self.from.ln()) / (self.to.ln() - self.from.ln())
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.start + share * (self.end - self.start)
    }

    /// The same, so much further to the right.
    fn shifted(&self, by: f64) -> Self {
        Self { start: self.start + by, end: self.end + by, ..*self }
    }

    fn holds(&self, value: f64) -> bool {
        value >= self.from * 0.999_999 && value <= self.to * 1.000_001
    }
}

impl Axis {
    /// Distance between the marks of two series at the same place.
    fn apart(&self) -> f64 {
        if self.joined { 3.0 } else { 13.0 }
    }
}

impl Plot {
    /// The plot as the text of an SVG file.
    pub fn svg(&self) -> String {
        let x = self.x_scale();
        let spread = |p: &Point| {
            let (low, high) = p.spread.unwrap_or((p.y, p.y));
            [low, p.y, high]
        };
        let y = self.scale(&self.y, TOP + HEIGHT, TOP, spread);
        let caption: Vec<String> = self.caption.iter().flat_map(|row| wrap(row, 105)).collect();
        let height = TOP + HEIGHT + 66.0 + 15.0 * f64::from(lines(&caption));
        let mut svg = String::new();
        line(
            &mut svg,
            format_args!(
                r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>"##
            ),
        );
        line(&mut svg, format_args!(r##"<rect width="{WIDTH}" height="{height}" fill="#fff"/>"##));
        text(&mut svg, (LEFT, 24.0), r#"font-size="15" font-weight="bold""#, &self.title);
        self.draw_axes(&mut svg, &x, &y);
        let measured = self.series.iter().filter(|series| series.look != Look::Published).count();
        for (i, series) in self.series.iter().enumerate() {
            // Side by side, so that equal values do not hide each other.
            let middle = measured.saturating_sub(1) as f64 / 2.0;
            let published = series.look == Look::Published;
            let shift = if published { 0.0 } else { (i as f64 - middle) * self.x.apart() };
            series.draw(&mut svg, &x.shifted(shift), &y, self.x.joined);
        }
        self.draw_legend(&mut svg);
        let mut below = TOP + HEIGHT + 66.0;
        for row in &caption {
            text(&mut svg, (LEFT, below), r##"font-size="11" fill="#555""##, row);
            below += 15.0;
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// The range that shows every point, with air around, from zero where the axis is linear.
    fn scale(
        &self,
        axis: &Axis,
        start: f64,
        end: f64,
        values: impl Fn(&Point) -> [f64; 3],
    ) -> Scale {
        let points = self.series.iter().flat_map(|s| &s.points);
        let all = points.filter(|p| p.mark != Mark::Missing).flat_map(values);
        let ticks = axis.ticks.iter().map(|t| t.0);
        let all: Vec<f64> = all.chain(ticks).filter(|v| !axis.log || *v > 0.0).collect();
        let low = all.iter().copied().fold(f64::INFINITY, f64::min);
        let high = all.iter().copied().fold(0.0, f64::max);
        let (from, to) = match (axis.log, low.is_finite()) {
            (_, false) => (1.0, 10.0),
            (true, true) => (low / 1.25, high * 1.25),
            (false, true) => (0.0, if high > 0.0 { high * 1.08 } else { 1.0 }),
        };
        Scale { from, to, start, end, log: axis.log }
    }

    /// From the first to the last mark; kinds have a column each.
    fn x_scale(&self) -> Scale {
        let (start, end) = (LEFT, WIDTH - RIGHT);
        match self.x.joined {
            true => self.scale(&self.x, start, end, |p| [p.x; 3]),
            false => {
                let to = self.x.ticks.len() as f64 - 0.5;
                Scale { from: -0.5, to, start, end, log: false }
            }
        }
    }

    fn draw_axes(&self, svg: &mut String, x: &Scale, y: &Scale) {
        let (bottom, right) = (TOP + HEIGHT, WIDTH - RIGHT);
        for (value, label) in ticks(&self.y, y) {
            let at = y.at(value);
            rule(svg, (LEFT, at), (right, at), "#e4e4e4");
            text(svg, (LEFT - 8.0, at + 4.0), r#"text-anchor="end""#, &label);
        }
        for (value, label) in ticks(&self.x, x) {
            let at = x.at(value);
            rule(svg, (at, bottom), (at, bottom + 5.0), "#222");
            // Kinds have names, which have room in their column only.
            let rows = if self.x.joined { vec![label] } else { wrap(&label, 10) };
            for (i, row) in rows.iter().enumerate() {
                let below = bottom + 19.0 + 13.0 * i as f64;
                text(svg, (at, below), r#"text-anchor="middle""#, row);
            }
        }
        rule(svg, (LEFT, bottom), (right, bottom), "#222");
        rule(svg, (LEFT, TOP), (LEFT, bottom), "#222");
        let middle = f64::midpoint(LEFT, right);
        let below = if self.x.joined { bottom + 38.0 } else { bottom + 48.0 };
        text(svg, (middle, below), r#"text-anchor="middle""#, &self.x.label);
        let at = TOP + HEIGHT / 2.0;
        let turned = format!(r#"text-anchor="middle" transform="rotate(-90 20 {at})""#);
        text(svg, (20.0, at), &turned, &self.y.label);
    }

    fn draw_legend(&self, svg: &mut String) {
        let (left, mut at) = (WIDTH - RIGHT + 18.0, TOP + 8.0);
        for series in &self.series {
            if series.look != Look::Published && (self.x.joined || series.look == Look::Limit) {
                series.stroke(svg, &format!("{left},{at} {},{at}", left + 26.0));
            }
            series.mark(svg, (left + 13.0, at), false);
            for row in wrap(&series.name, 23) {
                text(svg, (left + 34.0, at + 4.0), "", &row);
                at += 15.0;
            }
            at += 7.0;
        }
    }
}

impl Series {
    fn colour(&self) -> &'static str {
        match self.look {
            Look::Own(number) => COLOURS[number % COLOURS.len()],
            Look::Limit => "#888",
            Look::Peer(number) => COLOURS[(number + 3) % COLOURS.len()],
            Look::Published => "#222",
        }
    }

    fn draw(&self, svg: &mut String, x: &Scale, y: &Scale, joined: bool) {
        let shows = |p: &&Point| p.mark != Mark::Missing && (!y.log || p.y > 0.0);
        let visible = || self.points.iter().filter(shows);
        if joined && self.look != Look::Published {
            let corner = |p: &Point| format!("{:.1},{:.1}", x.at(p.x), y.at(p.y));
            self.stroke(svg, &visible().map(corner).collect::<Vec<_>>().join(" "));
        }
        for point in visible() {
            let at = (x.at(point.x), y.at(point.y));
            if !joined && self.look == Look::Limit {
                self.stroke(
                    svg,
                    &format!("{:.1},{2:.1} {:.1},{2:.1}", at.0 - 9.0, at.0 + 9.0, at.1),
                );
            }
            if let Some((low, high)) = point.spread.filter(|s| !y.log || s.0 > 0.0) {
                self.bar(svg, at.0, y.at(low), y.at(high));
            }
            self.mark(svg, at, matches!(point.mark, Mark::Elsewhere(_)));
            if let Mark::Elsewhere(place) = point.mark {
                let style = format!(r#"font-size="9" fill="{}""#, self.colour());
                text(svg, (at.0 + 6.0, at.1 - 5.0), &style, place);
            }
        }
        for point in self.points.iter().filter(|p| !shows(p)) {
            let (at, foot) = (x.at(point.x), y.start - 6.0);
            for slope in [4.0, -4.0] {
                rule(svg, (at - 4.0, foot - slope), (at + 4.0, foot + slope), self.colour());
            }
        }
    }

    /// From the smallest to the largest sample, wider than the mark between them.
    fn bar(&self, svg: &mut String, x: f64, low: f64, high: f64) {
        rule(svg, (x, low), (x, high), self.colour());
        for end in [low, high] {
            rule(svg, (x - 5.5, end), (x + 5.5, end), self.colour());
        }
    }

    fn stroke(&self, svg: &mut String, points: &str) {
        let dashes = match self.look {
            Look::Own(_) => "",
            Look::Limit => r#" stroke-dasharray="7 4""#,
            Look::Peer(_) | Look::Published => r#" stroke-dasharray="3 3""#,
        };
        let style = format!(r#"fill="none" stroke="{}" stroke-width="1.8"{dashes}"#, self.colour());
        line(svg, format_args!(r#"<polyline points="{points}" {style}/>"#));
    }

    fn mark(&self, svg: &mut String, (x, y): (f64, f64), hollow: bool) {
        let colour = self.colour();
        let fill = if hollow { "#fff" } else { colour };
        let style = format!(r#"fill="{fill}" stroke="{colour}" stroke-width="1.4""#);
        match self.look {
            Look::Own(_) => {
                line(svg, format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" {style}/>"#));
            }
            Look::Limit => {}
            Look::Peer(_) => {
                let (x, y) = (x - 2.8, y - 2.8);
                let place = format!(r#"x="{x:.1}" y="{y:.1}" width="5.6" height="5.6""#);
                line(svg, format_args!("<rect {place} {style}/>"));
            }
            Look::Published => line(
                svg,
                format_args!(
                    r##"<path d="M{x:.1} {:.1}l5 5l-5 5l-5 -5z" fill="#fff" stroke="{colour}"/>"##,
                    y - 5.0
                ),
            ),
        }
    }
}

/// The marks of an axis: its own, or round numbers inside the range.
fn ticks(axis: &Axis, scale: &Scale) -> Vec<(f64, String)> {
    if !axis.ticks.is_empty() {
        return axis.ticks.clone();
    }
    let round = if scale.log { log_ticks(scale) } else { linear_ticks(scale) };
    round.into_iter().map(|v| (v, number(v))).collect()
}

fn log_ticks(scale: &Scale) -> Vec<f64> {
    let decades = (scale.to / scale.from).log10();
    let steps: &[f64] = if decades > 2.6 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all = (-6..7).flat_map(|power| steps.iter().map(move |s| s * 10_f64.powi(power)));
    all.filter(|&v| scale.holds(v)).collect()
}

fn linear_ticks(scale: &Scale) -> Vec<f64> {
    let rough = (scale.to - scale.from) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|s| s * power).into_iter().find(|&s| s >= rough);
    let step = step.unwrap_or(10.0 * power);
    (0..20).map(|i| f64::from(i) * step).filter(|&v| scale.holds(v)).collect()
}

fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn wrap(words: &str, width: usize) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for word in words.split(' ') {
        match rows.last_mut() {
            Some(row) if row.chars().count() + word.chars().count() < width => {
                row.push(' ');
                row.push_str(word);
            }
            _ => rows.push(word.to_owned()),
        }
    }
    rows
}

fn lines(caption: &[String]) -> u8 {
    u8::try_from(caption.len()).unwrap_or(u8::MAX)
}

fn rule(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    line(
        svg,
        format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}"/>"#
        ),
    );
}

fn text(svg: &mut String, at: (f64, f64), style: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    line(svg, format_args!(r#"<text x="{:.1}" y="{:.1}" {style}>{words}</text>"#, at.0, at.1));
}

fn line(svg: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(svg, "{arguments}").expect("a string takes what it is given");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(log: bool) -> Axis {
        Axis { label: "x".into(), log, joined: true, ticks: vec![] }
    }

    #[test]
    fn test_svg_draws_every_point_inside_the_frame() {
        let spread = |y| Some((y * 0.9, y * 1.1));
        let point = |x, y| Point { x, y, spread: spread(y), mark: Mark::Measured };
        let series = Series {
            name: "a < b".into(),
            look: Look::Own(0),
            points: vec![
                point(60.0, 120.0),
                Point { mark: Mark::Missing, ..point(200.0, 0.0) },
                Point { mark: Mark::Elsewhere("far"), ..point(1514.0, 18.0) },
            ],
        };
        let plot = Plot {
            title: "t".into(),
            caption: vec!["c".into()],
            x: axis(true),
            y: axis(true),
            series: vec![series],
        };
        let svg = plot.svg();
        assert_eq!(svg.matches("<circle").count(), 3, "two points and the legend");
        assert_eq!(svg.matches(">far<").count(), 1, "where the cores were");
        let (bars, cross) = (2 * 3, 2);
        assert_eq!(svg.matches(r##"stroke="#0072B2"/>"##).count(), bars + cross);
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(svg.lines().all(|line| line.starts_with('<') && line.ends_with('>')));
    }

    #[test]
    fn test_svg_nothing_measured_is_still_a_plot() {
        let plot = Plot {
            title: "t".into(),
            caption: vec![],
            x: axis(true),
            y: axis(false),
            series: vec![],
        };
        assert!(!plot.svg().contains("NaN"));
    }

    #[test]
    fn test_ticks_are_round_numbers() {
        let scale = Scale { from: 0.0, to: 230.0, start: 0.0, end: 1.0, log: false };
        assert_eq!(linear_ticks(&scale), [0.0, 50.0, 100.0, 150.0, 200.0]);
        let scale = Scale { from: 0.8, to: 25.0, start: 0.0, end: 1.0, log: true };
        assert_eq!(log_ticks(&scale), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(number(0.05), "0.05");
    }

    #[test]
    fn test_wrap_breaks_between_words() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
    }
}
