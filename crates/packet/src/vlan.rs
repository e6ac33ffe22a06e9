//! VLAN numbers, sets of them, and how a port takes part in VLANs.

use std::fmt;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::error::ParseError;

/// The number of a VLAN: 1 to 4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanId(NonZeroU16);

impl VlanId {
    /// The VLAN of a port without configuration.
    pub const DEFAULT: Self = Self(NonZeroU16::MIN);
    /// The highest VLAN; 4095 is reserved by 802.1Q.
    pub const MAX: u16 = 4094;

    /// The VLAN with this number, if there is one.
    #[inline]
    pub const fn new(number: u16) -> Option<Self> {
        match NonZeroU16::new(number) {
            Some(number) if number.get() <= Self::MAX => Some(Self(number)),
            _ => None,
        }
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl TryFrom<u16> for VlanId {
    type Error = ParseError;

    fn try_from(number: u16) -> Result<Self, ParseError> {
        Self::new(number).ok_or_else(|| ParseError::new(EXPECTED_ID, &number.to_string()))
    }
}

impl FromStr for VlanId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let number = text.parse().ok().and_then(Self::new);
        number.ok_or_else(|| ParseError::new(EXPECTED_ID, text))
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of VLANs. Its text is a list of numbers and ranges, `1,10,100-200`, or `all` or `none`.
///
/// The bits are boxed: most ports have no such set, and a port's configuration stays small.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct VlanSet(Box<[u64; WORDS]>);

impl VlanSet {
    /// No VLAN.
    pub fn none() -> Self {
        Self(Box::new([0; WORDS]))
    }

    /// Every VLAN, 1 to 4094.
    pub fn all() -> Self {
        (1..=VlanId::MAX).filter_map(VlanId::new).collect()
    }

    /// Adds a VLAN.
    pub fn insert(&mut self, vlan: VlanId) {
        let (word, bit) = place(vlan);
        self.0[word] |= bit;
    }

    /// Takes a VLAN out.
    pub fn remove(&mut self, vlan: VlanId) {
        let (word, bit) = place(vlan);
        self.0[word] &= !bit;
    }

    /// Whether the VLAN is in the set.
    #[inline]
    pub fn contains(&self, vlan: VlanId) -> bool {
        let (word, bit) = place(vlan);
        self.0[word] & bit != 0
    }

    /// How many VLANs are in the set.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether every VLAN is in the set.
    pub fn is_all(&self) -> bool {
        self.count() == u32::from(VlanId::MAX)
    }

    /// The VLANs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = VlanId> + '_ {
        (1..=VlanId::MAX).filter_map(VlanId::new).filter(|&vlan| self.contains(vlan))
    }
}

impl Default for VlanSet {
    fn default() -> Self {
        Self::none()
    }
}

impl FromIterator<VlanId> for VlanSet {
    fn from_iter<I: IntoIterator<Item = VlanId>>(vlans: I) -> Self {
        let mut set = Self::none();
        vlans.into_iter().for_each(|vlan| set.insert(vlan));
        set
    }
}

impl FromStr for VlanSet {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "all" => Ok(Self::all()),
            "none" => Ok(Self::none()),
            list => list.split(',').try_fold(Self::none(), |mut set, item| {
                let range = parse_range(item).ok_or_else(|| ParseError::new(EXPECTED_SET, text))?;
                range.filter_map(VlanId::new).for_each(|vlan| set.insert(vlan));
                Ok(set)
            }),
        }
    }
}

impl fmt::Display for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count() {
            0 => return f.write_str("none"),
            count if count == u32::from(VlanId::MAX) => return f.write_str("all"),
            _ => {}
        }
        let mut separator = "";
        let mut next = 1;
        while let Some(range) = self.range_from(next) {
            f.write_str(separator)?;
            write_range(f, &range)?;
            separator = ",";
            next = range.end() + 1;
        }
        Ok(())
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VlanSet({self})")
    }
}

impl VlanSet {
    /// The first run of VLANs in the set at or after `start`.
    fn range_from(&self, start: u16) -> Option<RangeInclusive<u16>> {
        let has = |number: &u16| VlanId::new(*number).is_some_and(|vlan| self.contains(vlan));
        let first = (start..=VlanId::MAX).find(has)?;
        let last = (first..=VlanId::MAX).take_while(has).last()?;
        Some(first..=last)
    }
}

fn write_range(f: &mut fmt::Formatter<'_>, range: &RangeInclusive<u16>) -> fmt::Result {
    if range.start() == range.end() {
        write!(f, "{}", range.start())
    } else {
        write!(f, "{}-{}", range.start(), range.end())
    }
}

fn parse_range(item: &str) -> Option<RangeInclusive<u16>> {
    let parse = |text: &str| text.trim().parse::<VlanId>().ok().map(VlanId::get);
    let (first, last) = item.split_once('-').unwrap_or((item, item));
    let range = parse(first)?..=parse(last)?;
    (!range.is_empty()).then_some(range)
}

/// The word of a VLAN in a set, and its bit there.
#[inline]
fn place(vlan: VlanId) -> (usize, u64) {
    (usize::from(vlan.get() >> 6), 1 << (vlan.get() & 63))
}

/// How a port takes part in VLANs. Its text is `transparent[:VLAN]`, `access:VLAN` or
/// `trunk:VLANS[,native=VLAN]`, for example `trunk:10,20-30,native=1`.
///
/// | mode | untagged in | tagged in | out |
/// |---|---|---|---|
/// | transparent | its VLAN | its VLAN; the tag is payload | without the tag of a trunk |
/// | access | its VLAN | only if tagged with its VLAN | untagged |
/// | trunk | the native VLAN, if any | the tag's VLAN, if allowed | tagged, but the native VLAN |
///
/// A priority tag (VLAN 0) counts as untagged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub enum VlanMode {
    /// The port does not look at tags: what it carries is a VLAN of the switch as a whole (a
    /// "dot1q tunnel"). The default, because it is how VALE, and a bridge that does not filter
    /// VLANs, treat tagged frames.
    Transparent(VlanId),
    /// One VLAN, without tags.
    Access(VlanId),
    /// Several VLANs, told apart by tags.
    Trunk {
        /// The VLAN of untagged frames; a member even where `allowed` does not name it.
        native: Option<VlanId>,
        /// The VLANs of tagged frames.
        allowed: VlanSet,
    },
}

impl VlanMode {
    /// Whether frames of this VLAN may pass the port.
    #[inline]
    pub fn carries(&self, vlan: VlanId) -> bool {
        match self {
            Self::Transparent(own) | Self::Access(own) => *own == vlan,
            Self::Trunk { native, allowed } => *native == Some(vlan) || allowed.contains(vlan),
        }
    }

    /// Whether frames of this VLAN leave without a tag where frames of others have one.
    #[inline]
    #[must_use]
    pub fn is_native(&self, vlan: VlanId) -> bool {
        matches!(self, Self::Trunk { native, .. } if *native == Some(vlan))
    }

    /// The VLAN whose frames enter and leave without a tag.
    #[must_use]
    pub fn untagged(&self) -> Option<VlanId> {
        match self {
            Self::Transparent(own) | Self::Access(own) => Some(*own),
            Self::Trunk { native, .. } => *native,
        }
    }

    /// Whether VLAN tags are payload.
    #[inline]
    #[must_use]
    pub fn is_transparent(&self) -> bool {
        matches!(self, Self::Transparent(_))
    }
}

impl Default for VlanMode {
    fn default() -> Self {
        Self::Transparent(VlanId::DEFAULT)
    }
}

impl fmt::Display for VlanMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transparent(vlan) => write!(f, "transparent:{vlan}"),
            Self::Access(vlan) => write!(f, "access:{vlan}"),
            Self::Trunk { native: None, allowed } => write!(f, "trunk:{allowed}"),
            Self::Trunk { native: Some(vlan), allowed } => {
                write!(f, "trunk:{allowed},native={vlan}")
            }
        }
    }
}

impl FromStr for VlanMode {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.split_once(':') {
            None if text == "transparent" => Ok(Self::default()),
            Some(("transparent", vlan)) => vlan.parse().map(Self::Transparent),
            Some(("access", vlan)) => vlan.parse().map(Self::Access),
            Some(("trunk", vlans)) => parse_trunk(vlans),
            _ => {
                Err(ParseError::new("transparent, access:VLAN or trunk:VLANS[,native=VLAN]", text))
            }
        }
    }
}

crate::text_form!(VlanMode);

fn parse_trunk(text: &str) -> Result<VlanMode, ParseError> {
    let (vlans, native) = match text.rsplit_once(",native=") {
        Some((vlans, native)) => (vlans, Some(native.parse()?)),
        None => (text, None),
    };
    Ok(VlanMode::Trunk { native, allowed: vlans.parse()? })
}

const WORDS: usize = 4096 / 64;
const EXPECTED_ID: &str = "a VLAN, 1 to 4094";
const EXPECTED_SET: &str = "VLANs such as 1,10,100-200, all or none";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::btree_set;
    use proptest::prelude::*;

    #[test]
    fn test_vlan_numbers_are_bounded() {
        assert_eq!(VlanId::new(0), None);
        assert_eq!(VlanId::new(4095), None);
        assert_eq!(VlanId::new(4094).map(VlanId::get), Some(4094));
        assert_eq!(
            VlanId::try_from(0).unwrap_err().to_string(),
            "expected a VLAN, 1 to 4094, found \"0\""
        );
    }

    #[test]
    fn test_set_is_written_as_ranges() {
        let set: VlanSet = "100-200, 1,10,2,199-201".parse().unwrap();
        assert_eq!(set.to_string(), "1-2,10,100-201");
        assert_eq!("all".parse::<VlanSet>().unwrap().to_string(), "all");
        assert_eq!("1-4094".parse::<VlanSet>().unwrap(), VlanSet::all());
        assert_eq!(VlanSet::none().to_string(), "none");
    }

    #[test]
    fn test_text_that_is_no_set_is_refused() {
        for text in ["", "0", "4095", "5-3", "1-", "-1", "1,,2", "1-2-3", "x"] {
            assert!(text.parse::<VlanSet>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn test_vlan_taken_out_is_gone() {
        let mut set = VlanSet::all();
        set.remove(VlanId::DEFAULT);
        assert!(!set.contains(VlanId::DEFAULT) && !set.is_all());
    }

    #[test]
    fn test_vlan_modes_survive_their_text() {
        for text in ["transparent:1", "access:10", "trunk:10,20-30", "trunk:all,native=1"] {
            assert_eq!(text.parse::<VlanMode>().unwrap().to_string(), text);
        }
        assert_eq!("transparent".parse(), Ok(VlanMode::default()));
    }

    #[test]
    fn test_text_that_is_no_vlan_mode_is_refused() {
        for text in ["", "access", "access:0", "trunk:", "trunk:1,native=", "trunk:native=1", "hub"]
        {
            assert!(text.parse::<VlanMode>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn test_trunk_carries_its_native_vlan() {
        let trunk: VlanMode = "trunk:10,native=1".parse().unwrap();
        let carried: Vec<_> =
            [1, 2, 10].into_iter().filter_map(VlanId::new).filter(|v| trunk.carries(*v)).collect();
        assert_eq!(carried.iter().map(|vlan| vlan.get()).collect::<Vec<_>>(), [1, 10]);
    }

    proptest! {
        #[test]
        fn prop_set_survives_its_text(numbers in btree_set(1u16..=4094, 0..64)) {
            let set: VlanSet = numbers.iter().copied().filter_map(VlanId::new).collect();
            prop_assert_eq!(set.to_string().parse(), Ok(set.clone()));
            prop_assert!(set.iter().map(VlanId::get).eq(numbers));
        }

        #[test]
        fn prop_no_text_makes_the_parser_panic(text in "[-0-9, al]{0,24}") {
            let _ = text.parse::<VlanSet>();
        }
    }
}
