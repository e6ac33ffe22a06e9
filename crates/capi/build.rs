//! Gives the shared library its name: programs ask the loader for the version they were linked to.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libuvala.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
