wire clk, locked; // $made MHz of $given MHz
    (* FREQUENCY_PIN_CLKI = "$given", FREQUENCY_PIN_CLKOP = "$made" *)
    (* ICP_CURRENT = "12", LPF_RESISTOR = "8", MFG_ENABLE_FILTEROPAMP = "1", MFG_GMCREF_SEL = "2" *)
    EHXPLLL #(
        .FEEDBK_PATH("CLKOP"), .CLKI_DIV($source), .CLKFB_DIV($feedback),
        .CLKOP_ENABLE("ENABLED"), .CLKOP_DIV($target), .CLKOP_CPHASE($phase), .CLKOP_FPHASE(0),
        .PLLRST_ENA("DISABLED"), .STDBY_ENABLE("DISABLED"), .INTFB_WAKE("DISABLED"), .DPHASE_SOURCE("DISABLED"),
        .OUTDIVIDER_MUXA("DIVA"), .OUTDIVIDER_MUXB("DIVB"), .OUTDIVIDER_MUXC("DIVC"), .OUTDIVIDER_MUXD("DIVD")
    ) pll (
        .CLKI(clk_in), .CLKOP(clk), .CLKFB(clk), .LOCK(locked), .RST(1'b0), .STDBY(1'b0), .ENCLKOP(1'b0),
        .PHASESEL0(1'b0), .PHASESEL1(1'b0), .PHASEDIR(1'b1), .PHASESTEP(1'b1), .PHASELOADREG(1'b1), .PLLWAKESYNC(1'b0)
    );
