//! Prints frames where they lie, without a copy: `receive PORT [COUNT]`.

use std::io::Write;

use client::{Error, Frame, Port};

fn receive(name: &str, count: usize) -> Result<(), Error> {
    let mut port = Port::open(name)?;
    println!("listening on {name}");
    let rx = port.rx(0);
    let mut seen = 0;
    while seen < count {
        rx.wait(None)?;
        let slots = rx.available();
        for frame in rx.frames().take(count - seen) {
            print(&frame);
            seen += 1;
        }
        rx.release(slots)?;
    }
    Ok(())
}

fn print(frame: &Frame<'_>) {
    let head = frame.parts().next().unwrap_or_default();
    let mut line = format!("{:5} bytes in {} slots:", frame.len(), frame.slots());
    for byte in head.iter().take(18) {
        line += &format!(" {byte:02x}");
    }
    // The reader of our output may have closed it: not worth a panic.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn main() {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "vale0:receive".to_owned());
    let count = args.next().and_then(|count| count.parse().ok()).unwrap_or(usize::MAX);
    if let Err(error) = receive(&name, count) {
        eprintln!("receive: {error}");
        std::process::exit(error.exit_code().into());
    }
}
