"""What moves the keys of earlier versions to where this one looks for them: one module per migration, and who runs them.

    gate          may a stream be used, or must a migration come first? Asked once by whoever opens one
    discovery     which streams have keys of the previous layout
    coordinator   the list of migrations, what became of each, the lock, and the order of a migration's steps
    m001_...      the migrations: each says what there is, moves it, and removes what it leaves behind
    adopt_source  what others have built by hand: may it be adopted, and what would become of it
    adopt         moves that, on one server
    adopt_copy    copies and compares it, on a cluster

Plans only, as everywhere below the drivers; the commands of ``streamq migrate`` run them.
"""
