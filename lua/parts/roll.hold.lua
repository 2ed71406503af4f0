-- hold: while the limit is held, a statement asks for nothing.

local longer = extend > 0 and math.ceil(now / 1000) + extend > hold
if longer then hold = math.ceil(now / 1000) + extend end
if hold * 1000 > now then want, need = 0, 0 else hold = 0 end
