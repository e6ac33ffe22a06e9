//! The bridge, case by case.
