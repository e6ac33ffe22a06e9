//! Plots as SVG text: one uniform style, for a page of print. `plotters` draws.
//!
//! Ours are solid lines with circles; each point has a bar from its smallest to its largest sample.
//! What the machine allows is dashed and grey, other software has squares and short dashes, and
//! what others have published has open diamonds and no line. A hollow mark was measured under other
//! circumstances; a cross at the foot stands for a point that could not be measured. Colours are
//! those of Okabe and Ito, which colour-blind readers and grey prints tell apart.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

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
    /// Points from left to right.
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

const FONT: &str = "Helvetica, Arial, sans-serif";
/// Sizes of text. plotters divides them by 1.24.
const TITLE: i32 = 19;
const TEXT: i32 = 15;
const SMALL: i32 = 14;
const TINY: i32 = 11;
const WIDTH: i32 = 720;
const LEFT: i32 = 74;
const RIGHT: i32 = 210;
const TOP: i32 = 46;
const HEIGHT: i32 = 300;
/// Between the plot and its caption: the labels of the horizontal axis.
const LABELS: i32 = 56;
const ROW: i32 = 15;

const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
];
const DARK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GREY: RGBColor = RGBColor(0x88, 0x88, 0x88);
const LIGHT: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

impl Plot {
    /// The plot as the text of an SVG file.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        self.draw(&mut svg).expect("a string takes what it is given");
        svg
    }

    fn draw(&self, svg: &mut String) -> Drawn {
        let caption: Vec<String> = self.caption.iter().flat_map(|row| wrap(row, 105)).collect();
        let rows = i32::try_from(caption.len()).unwrap_or(i32::MAX);
        let below = LABELS + 14 + ROW * rows;
        let size = (WIDTH.unsigned_abs(), (TOP + HEIGHT + below).unsigned_abs());
        let root = SVGBackend::with_string(svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        let title = (FONT, TITLE).into_font().style(FontStyle::Bold);
        root.draw(&Text::new(self.title.as_str(), (LEFT, 14), title))?;
        for (row, at) in caption.iter().zip((TOP + HEIGHT + LABELS + 6..).step_by(15)) {
            root.draw(&Text::new(
                row.as_str(),
                (LEFT, at),
                (FONT, SMALL).into_font().color(&GREY),
            ))?;
        }
        let (x, y) = (self.x_scale(), self.scale(&self.y, Point::range));
        let mut chart = ChartBuilder::on(&root)
            .margin_top(TOP)
            .margin_right(RIGHT)
            .margin_bottom(below - LABELS)
            .x_label_area_size(LABELS)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(x.clone(), y.clone())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .bold_line_style(LIGHT)
            .axis_style(DARK)
            .label_style((FONT, TEXT))
            .x_label_formatter(&|at| if self.x.joined { x.name_at(*at) } else { String::new() })
            .y_label_formatter(&|at| y.name_at(*at))
            .x_desc(self.x.label.as_str())
            .y_desc(self.y.label.as_str())
            .draw()?;
        let measured = self.series.iter().filter(|series| series.look != Look::Published).count();
        let middle = measured.saturating_sub(1) as f64 / 2.0;
        for (i, series) in self.series.iter().enumerate() {
            // Side by side, so that equal values do not hide each other.
            let published = series.look == Look::Published;
            let shift = if published { 0.0 } else { (i as f64 - middle) * self.x.apart() };
            // Half a pixel is less than a line is wide.
            #[allow(clippy::cast_possible_truncation)]
            let shift = shift.round() as i32;
            series.draw(&root, self.x.joined, |point, value| {
                let (left, top) = chart.backend_coord(&(point.x, value));
                (left + shift, top)
            })?;
        }
        if !self.x.joined {
            for (value, name) in &self.x.ticks {
                let (middle, _) = chart.backend_coord(&(*value, y.from));
                for (row, at) in wrap(name, 10).iter().zip((TOP + HEIGHT + 8..).step_by(13)) {
                    let style = centred(&root).pos(Pos::new(HPos::Center, VPos::Top));
                    root.draw(&Text::new(row.as_str(), (middle, at), style))?;
                }
            }
        }
        self.draw_legend(&root)?;
        root.present()
    }

    /// The range that shows every point, with air around, from zero where the axis is linear.
    fn scale(&self, axis: &Axis, values: impl Fn(&Point) -> [f64; 3]) -> Scale {
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
        Scale::new(axis, from, to)
    }

    /// From the first to the last mark; kinds have a column each.
    fn x_scale(&self) -> Scale {
        match self.x.joined {
            true => self.scale(&self.x, |p| [p.x; 3]),
            false => Scale::new(&self.x, -0.5, self.x.ticks.len() as f64 - 0.5),
        }
    }

    fn draw_legend(&self, root: &Area<'_>) -> Drawn {
        let (left, mut at) = (WIDTH - RIGHT + 18, TOP + 8);
        for series in &self.series {
            if series.look != Look::Published && (self.x.joined || series.look == Look::Limit) {
                series.line(root, vec![(left, at), (left + 26, at)])?;
            }
            series.mark(root, (left + 13, at), false)?;
            for row in wrap(&series.name, 23) {
                let style = centred(root).pos(Pos::new(HPos::Left, VPos::Center));
                root.draw(&Text::new(row, (left + 34, at), style))?;
                at += ROW;
            }
            at += 7;
        }
        Ok(())
    }
}

/// The range of an axis, and its marks.
#[derive(Clone)]
struct Scale {
    from: f64,
    to: f64,
    log: bool,
    ticks: Vec<(f64, String)>,
}

impl Scale {
    /// The marks are those of the axis, or round numbers in the range.
    fn new(axis: &Axis, from: f64, to: f64) -> Self {
        let round = || {
            let values = if axis.log { round_ratios(from, to) } else { round_numbers(from, to) };
            values.into_iter().map(|value| (value, number(value))).collect()
        };
        let ticks = if axis.ticks.is_empty() { round() } else { axis.ticks.clone() };
        Self { from, to, log: axis.log, ticks }
    }

    /// What the mark at a value says.
    fn name_at(&self, value: f64) -> String {
        let is_it = |tick: &&(f64, String)| tick.0.total_cmp(&value).is_eq();
        self.ticks.iter().find(is_it).map(|(_, name)| name.clone()).unwrap_or_default()
    }
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let at = |value: f64| if self.log { value.ln() } else { value };
        RangedCoordf64::from(at(self.from)..at(self.to)).map(&at(*value), limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|tick| tick.0).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.from..self.to
    }
}

impl Axis {
    /// Distance between the marks of two series at the same place.
    fn apart(&self) -> f64 {
        if self.joined { 3.0 } else { 13.0 }
    }
}

impl Point {
    fn range(&self) -> [f64; 3] {
        let (low, high) = self.spread.unwrap_or((self.y, self.y));
        [low, self.y, high]
    }
}

impl Series {
    fn colour(&self) -> RGBColor {
        match self.look {
            Look::Own(number) => COLOURS[number % COLOURS.len()],
            Look::Limit => GREY,
            Look::Peer(number) => COLOURS[(number + 3) % COLOURS.len()],
            Look::Published => DARK,
        }
    }

    /// Draws the points; `place` says where a point with a value is.
    fn draw(
        &self,
        root: &Area<'_>,
        joined: bool,
        place: impl Fn(&Point, f64) -> (i32, i32),
    ) -> Drawn {
        let shows = |p: &&Point| p.mark != Mark::Missing;
        let visible = || self.points.iter().filter(shows);
        if joined && self.look != Look::Published {
            self.line(root, visible().map(|point| place(point, point.y)).collect())?;
        }
        for point in visible() {
            let at = place(point, point.y);
            if !joined && self.look == Look::Limit {
                self.line(root, vec![(at.0 - 9, at.1), (at.0 + 9, at.1)])?;
            }
            if let Some((low, high)) = point.spread {
                self.bar(root, at.0, place(point, low).1, place(point, high).1)?;
            }
            self.mark(root, at, matches!(point.mark, Mark::Elsewhere(_)))?;
            if let Mark::Elsewhere(name) = point.mark {
                let style = (FONT, TINY).into_font().color(&self.colour());
                root.draw(&Text::new(name, (at.0 + 6, at.1 - 12), style))?;
            }
        }
        for point in self.points.iter().filter(|p| !shows(p)) {
            let (at, foot) = (place(point, 1.0).0, TOP + HEIGHT - 6);
            root.draw(&Cross::new((at, foot), 4, self.colour()))?;
        }
        Ok(())
    }

    /// From the smallest to the largest sample, wider than the mark between them.
    fn bar(&self, root: &Area<'_>, x: i32, low: i32, high: i32) -> Drawn {
        root.draw(&PathElement::new(vec![(x, low), (x, high)], self.colour()))?;
        for end in [low, high] {
            root.draw(&PathElement::new(vec![(x - 5, end), (x + 5, end)], self.colour()))?;
        }
        Ok(())
    }

    fn line(&self, root: &Area<'_>, points: Vec<(i32, i32)>) -> Drawn {
        let style = self.colour().stroke_width(2);
        match self.look {
            Look::Own(_) => root.draw(&PathElement::new(points, style)),
            Look::Limit => root.draw(&DashedPathElement::new(points, 7, 4, style)),
            Look::Peer(_) | Look::Published => {
                root.draw(&DashedPathElement::new(points, 3, 3, style))
            }
        }
    }

    fn mark(&self, root: &Area<'_>, (x, y): (i32, i32), hollow: bool) -> Drawn {
        let colour = self.colour();
        let fill = if hollow { WHITE } else { colour };
        match self.look {
            Look::Own(_) => {
                root.draw(&Circle::new((x, y), 3, fill.filled()))?;
                root.draw(&Circle::new((x, y), 3, colour))
            }
            Look::Limit => Ok(()),
            Look::Peer(_) => {
                let corners = [(x - 3, y - 3), (x + 3, y + 3)];
                root.draw(&Rectangle::new(corners, fill.filled()))?;
                root.draw(&Rectangle::new(corners, colour))
            }
            Look::Published => {
                let corners = vec![(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y), (x, y - 5)];
                root.draw(&Polygon::new(corners.clone(), WHITE.filled()))?;
                root.draw(&PathElement::new(corners, colour))
            }
        }
    }
}

fn centred<'a>(root: &Area<'_>) -> TextStyle<'a> {
    (FONT, TEXT).into_text_style(root)
}

/// Marks of a linear axis.
fn round_numbers(from: f64, to: f64) -> Vec<f64> {
    RangedCoordf64::from(from..to).key_points(6)
}

/// Marks of a logarithmic axis: 1, 2 and 5 of each power of ten; over many of them, 1 alone.
fn round_ratios(from: f64, to: f64) -> Vec<f64> {
    let steps: &[f64] = if (to / from).log10() > 2.6 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all = (-6..7).flat_map(|power| steps.iter().map(move |s| s * 10_f64.powi(power)));
    all.filter(|value| (from..=to).contains(value)).collect()
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
        assert_eq!(svg.matches("<circle").count(), 2 * 3, "two points and the legend");
        assert_eq!(svg.matches("\nfar\n").count(), 1, "where the cores were");
        let ours = |kind: &str| {
            let is_ours = |line: &&str| line.starts_with(kind) && line.contains("#0072B2");
            svg.lines().filter(is_ours).count()
        };
        let (bars, cross, lines) = (2 * 3, 2, 2);
        assert_eq!((ours("<polyline"), ours("<line")), (bars + lines, cross));
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
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
        assert_eq!(round_numbers(0.0, 230.0), [0.0, 50.0, 100.0, 150.0, 200.0]);
        assert_eq!(round_ratios(0.8, 25.0), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(number(0.05), "0.05");
    }

    #[test]
    fn test_wrap_breaks_between_words() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
    }
}
