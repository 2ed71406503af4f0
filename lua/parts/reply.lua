-- reply: after a message.

return { mute, now, stop, hgen, used, mine, grant, clients, lasted, mute == 0 and idle - held or 0, out }
