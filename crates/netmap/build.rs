//! Says so where the library is built in a way that threads cannot be cancelled in.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_PANIC").is_ok_and(|panic| panic == "abort") {
        println!(
            "cargo::warning=a program that cancels threads would abort in this library: \
             build it with --profile preload"
        );
    }
}
